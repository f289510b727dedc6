//! drover-client
