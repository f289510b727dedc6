//! A platform to embed or to serve.
