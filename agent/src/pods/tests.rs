//! Tables of the pod lifecycle.
