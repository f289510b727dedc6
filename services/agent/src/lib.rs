//! drover-agent
