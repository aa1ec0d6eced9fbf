//! Kinds of the group `autoscaling`.

pub(crate) mod horizontal_pod_autoscaler;
