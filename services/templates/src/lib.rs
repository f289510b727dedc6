//! drover-templates
