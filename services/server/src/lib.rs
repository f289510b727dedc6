//! drover-server
