//! Makes nodes: checks, and the objects of each slot in order.
