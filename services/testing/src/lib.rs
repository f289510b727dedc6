//! drover-testing
