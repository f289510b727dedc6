//! drover-orchestrator
