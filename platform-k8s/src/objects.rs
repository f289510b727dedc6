//! Template output as Kubernetes objects: read, stamped with an identity, ordered. Pure functions.
