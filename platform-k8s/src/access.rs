//! Logs and commands of a node, through the API server.
