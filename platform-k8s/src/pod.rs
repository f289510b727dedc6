//! What is kept of a pod.
