//! Readiness of the pod network. Pure.

/// Whether pods can be connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Pods can be connected.
    Ready,
    /// Pods cannot be connected; the reason, in the form of upstream's node status.
    NotReady(String),
}

impl Readiness {
    /// Not ready for this reason.
    #[must_use]
    pub fn not_ready(why: &str) -> Self {
        Self::NotReady(format!(
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
             message:docker: network plugin is not ready: {why}"
        ))
    }

    /// The reason if not ready.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Ready => None,
            Self::NotReady(why) => Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_upstreams_words() {
        assert_eq!(Readiness::Ready.problem(), None);
        assert_eq!(
            Readiness::not_ready("cni config uninitialized").problem(),
            Some(
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:docker: network plugin is not ready: cni config uninitialized"
            )
        );
    }
}
