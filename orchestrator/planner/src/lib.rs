//! drover-planner
