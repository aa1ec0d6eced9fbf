//! Watches that the API forbids (403): reported once for each, with the command that grants the permission. Pure.

use kube::runtime::watcher;

/// The API's message where it forbids a watch to the proxy's identity; `None` for every other failure.
pub(super) fn message(error: &watcher::Error) -> Option<&str> {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status,
        watcher::Error::WatchError(status) => status,
        _ => return None,
    };
    (status.code == 403).then_some(status.message.as_str())
}

/// How to grant the permissions of the proxy to the user that the API's message names.
pub(super) fn remedy(message: &str) -> String {
    let user = message.split_once("User \"").and_then(|(_, rest)| rest.split_once('"')).map_or("", |(user, _)| user);
    if user.starts_with("system:node:") {
        return "a node may not follow EndpointSlices: allow it to all nodes with `windlass rbac | kubectl apply -f -`, \
                or give the proxy an identity of its own with --proxy-kubeconfig"
            .to_owned();
    }
    let whom = match user.strip_prefix("system:serviceaccount:") {
        Some(account) => format!("--serviceaccount={account}"),
        None if user.is_empty() => "--user=NAME".to_owned(),
        None => format!("--user={user}"),
    };
    format!("allow it with `kubectl create clusterrolebinding windlass-proxy --clusterrole=system:node-proxier {whom}`")
}

/// Whether one watch was reported as forbidden.
#[derive(Debug, Default)]
pub(super) struct ForbiddenState {
    reported: bool,
}

impl ForbiddenState {
    /// The watch is forbidden; whether to report it.
    pub(super) fn forbidden(&mut self) -> bool {
        !std::mem::replace(&mut self.reported, true)
    }

    /// The watch is allowed; whether to report it, because it was reported as forbidden before.
    pub(super) fn allowed(&mut self) -> bool {
        std::mem::take(&mut self.reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> Box<kube::core::Status> {
        Box::new(serde_json::from_value(serde_json::json!({"code": code, "message": message})).unwrap())
    }

    #[test]
    fn only_what_is_forbidden_is_a_refusal() {
        let list = |code| watcher::Error::InitialListFailed(kube::Error::Api(status(code, "no")));
        assert_eq!(message(&list(403)), Some("no"));
        assert_eq!(message(&list(401)), None);
        assert_eq!(message(&watcher::Error::WatchError(status(403, "no more"))), Some("no more"));
        assert_eq!(message(&watcher::Error::WatchError(status(410, "too old"))), None);
        assert_eq!(message(&watcher::Error::NoResourceVersion), None);
    }

    #[test]
    fn the_remedy_names_the_forbidden_user() {
        let forbidden = |user: &str| {
            format!(
                "endpointslices.discovery.k8s.io is forbidden: User \"{user}\" cannot list resource \"endpointslices\""
            )
        };
        for (user, line) in [
            ("system:node:n1", "`windlass rbac | kubectl apply -f -`"),
            ("system:kube-proxy", "--clusterrole=system:node-proxier --user=system:kube-proxy`"),
            (
                "system:serviceaccount:kube-system:kube-proxy",
                "--clusterrole=system:node-proxier --serviceaccount=kube-system:kube-proxy`",
            ),
        ] {
            assert!(remedy(&forbidden(user)).contains(line), "{user}: {}", remedy(&forbidden(user)));
        }
        assert!(remedy("no").contains("--user=NAME"));
    }

    #[test]
    fn it_is_reported_once_until_it_is_allowed() {
        let mut state = ForbiddenState::default();
        assert!(!state.allowed(), "it was not reported as forbidden");
        assert_eq!(
            [state.forbidden(), state.forbidden(), state.allowed(), state.allowed(), state.forbidden()],
            [true, false, true, false, true]
        );
    }
}
