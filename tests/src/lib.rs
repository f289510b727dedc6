//! drover-tests
