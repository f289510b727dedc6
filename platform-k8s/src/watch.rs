//! What changes, as the API server tells it.
