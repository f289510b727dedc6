//! Everything that exists, read from the API server.
