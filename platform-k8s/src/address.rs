//! The agent address of a pod.
