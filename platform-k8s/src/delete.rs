//! Removes a node with all its objects, if they are still the ones that are meant.
