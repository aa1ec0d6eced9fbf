//! Which containers, sandboxes and images a filter names, and which one an id means. Pure.

use super::{
    grpc::{Code, Status},
    messages::{Container, ContainerFilter, ContainerStatsFilter, PodSandbox, PodSandboxFilter, Texts},
};
use crate::engine::images::{ImageSummary, familiar};

/// Whether labels have all that a selector asks for.
fn selects(selector: &Texts, labels: &Texts) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether an id begins as the filter has it, as runtimes allow; an empty one matches all.
fn begins(id: &str, filter: &str) -> bool {
    id.starts_with(filter)
}

pub(super) fn container(filter: &ContainerFilter, container: &Container) -> bool {
    begins(&container.id, &filter.id)
        && filter.state.as_ref().is_none_or(|wanted| wanted.state == container.state)
        && begins(&container.pod_sandbox_id, &filter.pod_sandbox_id)
        && selects(&filter.label_selector, &container.labels)
}

pub(super) fn sandbox(filter: &PodSandboxFilter, sandbox: &PodSandbox) -> bool {
    begins(&sandbox.id, &filter.id)
        && filter.state.as_ref().is_none_or(|wanted| wanted.state == sandbox.state)
        && selects(&filter.label_selector, &sandbox.labels)
}

/// The same filter without a state: only what runs has usage.
pub(super) fn of_stats(filter: ContainerStatsFilter) -> ContainerFilter {
    let ContainerStatsFilter { id, pod_sandbox_id, label_selector } = filter;
    ContainerFilter { id, state: None, pod_sandbox_id, label_selector }
}

/// Whether an image has this name, digest or id. An id may be cut short, and may lack its `sha256:`.
pub(super) fn image(name: &str, image: &ImageSummary) -> bool {
    let called = familiar(name);
    let named = image.tags.iter().chain(&image.digests).any(|known| *known == called || known == name);
    let bare = |id: &str| id.strip_prefix("sha256:").unwrap_or(id).to_owned();
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    named || (is_hex(&bare(name)) && bare(&image.id).starts_with(&bare(name)))
}

/// The only one whose id begins like this; clients may cut ids short.
pub(super) fn by_id<'a, T>(
    kind: &str,
    id: &str,
    all: impl Iterator<Item = &'a T>,
    id_of: impl Fn(&'a T) -> &'a str,
) -> Result<&'a T, Status> {
    if id.is_empty() {
        return Err(Status::new(Code::InvalidArgument, format!("the id of the {kind} is missing")));
    }
    let mut found = all.filter(|one| id_of(one).starts_with(id));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            Err(Status::new(Code::InvalidArgument, format!("{id:?} is the beginning of more than one {kind}'s id")))
        }
        (None, _) => Err(Status::new(Code::NotFound, format!("no {kind} of a pod of this node has the id {id:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::messages::StateValue, *};

    fn texts(all: &[(&str, &str)]) -> Texts {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Which of three containers each filter matches.
    #[test]
    fn containers() {
        let one = |id: &str, pod: &str, state, labels: &[(&str, &str)]| Container {
            id: id.into(),
            pod_sandbox_id: pod.into(),
            state,
            labels: texts(labels),
            ..Container::default()
        };
        let all = [
            one("aa1", "p1", 0, &[("uid", "u"), ("name", "x")]),
            one("aa2", "p1", 1, &[("uid", "u"), ("name", "y")]),
            one("b", "p2", 1, &[("uid", "v")]),
        ];
        let id = |id: &str| ContainerFilter { id: id.into(), ..ContainerFilter::default() };
        let state = |state| ContainerFilter { state: Some(StateValue { state }), ..ContainerFilter::default() };
        let labels = |labels| ContainerFilter { label_selector: texts(labels), ..ContainerFilter::default() };
        let pod = |id: &str| ContainerFilter { pod_sandbox_id: id.into(), ..ContainerFilter::default() };
        for (filter, wanted) in [
            (ContainerFilter::default(), &["aa1", "aa2", "b"][..]),
            (id("aa"), &["aa1", "aa2"]),
            (id("b"), &["b"]),
            (id("bb"), &[]),
            // The first state is not the same as none.
            (state(0), &["aa1"]),
            (state(1), &["aa2", "b"]),
            (state(7), &[]),
            (pod("p1"), &["aa1", "aa2"]),
            (labels(&[("uid", "u")]), &["aa1", "aa2"]),
            (labels(&[("uid", "u"), ("name", "y")]), &["aa2"]),
            (labels(&[("name", "")]), &[]),
            (ContainerFilter { pod_sandbox_id: "p1".into(), ..state(1) }, &["aa2"]),
        ] {
            let found: Vec<&str> = all.iter().filter(|c| container(&filter, c)).map(|c| c.id.as_str()).collect();
            assert_eq!(found, wanted, "{filter:?}");
        }
    }

    #[test]
    fn an_id_may_be_cut_short_while_it_means_one() {
        let all = ["aa1".to_owned(), "aa2".to_owned(), "b".to_owned()];
        let find = |id: &str| by_id("container", id, all.iter(), |id| id).map_err(|status| status.code);
        assert_eq!(find("aa1").unwrap(), "aa1");
        assert_eq!(find("b").unwrap(), "b");
        assert_eq!(find("aa"), Err(Code::InvalidArgument));
        assert_eq!(find(""), Err(Code::InvalidArgument));
        assert_eq!(find("c"), Err(Code::NotFound));
    }

    #[test]
    fn images() {
        let stored = ImageSummary {
            id: "sha256:0123456789ab".into(),
            tags: vec!["nginx:1".into()],
            digests: vec!["nginx@sha256:ffffffffffffffffffffffffffffffff".into()],
            size: 1,
        };
        for (name, wanted) in [
            ("nginx:1", true),
            ("docker.io/library/nginx:1", true),
            ("nginx@sha256:ffffffffffffffffffffffffffffffff", true),
            ("sha256:0123456789ab", true),
            ("0123", true),
            ("nginx", false),
            ("nginx:2", false),
            ("sha256:", false),
            ("", false),
        ] {
            assert_eq!(image(name, &stored), wanted, "{name:?}");
        }
    }
}
