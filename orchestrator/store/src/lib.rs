//! drover-store
