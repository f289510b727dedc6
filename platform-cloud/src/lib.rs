//! drover-platform-cloud
