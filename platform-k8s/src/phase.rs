//! How far a pod is, and why.
