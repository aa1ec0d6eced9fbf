//! The metrics that others depend on, as upstream serves them: `metrics.tsv`, recorded from Kubernetes 1.36 and its
//! sources. Of the API it has what the public rules and dashboards of kube-prometheus ask for, of kubelet and kube-proxy
//! all that upstream has but for `absent_metrics.txt`, of cAdvisor what these rules and dashboards ask for.

use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = include_str!("metrics.tsv");
const ABSENT: &str = include_str!("absent_metrics.txt");

/// The rows of a page: name, type, labels, buckets.
fn rows(of: &str) -> impl Iterator<Item = [&'static str; 4]> {
    TABLE.lines().skip(1).filter_map(move |line| {
        let row: Vec<&str> = line.split('\t').collect();
        let [page, name, kind, labels, buckets] = row[..] else { panic!("{row:?} has not five columns") };
        (page == of).then_some([name, kind, labels, buckets])
    })
}

/// The families of upstream that are left out; the file has the reasons.
pub fn absent() -> impl Iterator<Item = &'static str> {
    ABSENT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// What the families of a part of a page have otherwise than the rows for the page, and those that have no row and are
/// not our own either.
#[must_use]
pub fn unlike(of: &str, part: &str) -> Vec<String> {
    let known: BTreeSet<&str> = rows(of).map(|[name, ..]| name).collect();
    let families = read(part);
    let strange = families.keys().filter(|name| !name.starts_with("windlass_") && !known.contains(*name));
    let mut found: Vec<String> = strange.map(|name| format!("{name} is not upstream's")).collect();
    for row in rows(of) {
        if let Some(family) = families.get(row[0]) {
            compare(row, family, false, &mut found);
        }
    }
    found
}

/// One family of a page.
#[derive(Debug, Default)]
struct Family<'a> {
    kind: &'a str,
    /// The names of the labels of each sample, without `le`.
    labels: BTreeSet<Vec<&'a str>>,
    buckets: BTreeSet<String>,
}

/// What a page lacks of the rows for it, or has otherwise; families in `silent` need no samples.
#[must_use]
pub fn differences(of: &str, page: &str, silent: &[&str]) -> Vec<String> {
    let families = read(page);
    let mut found = Vec::new();
    for row in rows(of) {
        match families.get(row[0]) {
            Some(family) => compare(row, family, !silent.contains(&row[0]), &mut found),
            None => found.push(format!("{} is missing", row[0])),
        }
    }
    found
}

fn compare([name, kind, labels, buckets]: [&str; 4], family: &Family<'_>, has_samples: bool, found: &mut Vec<String>) {
    if family.kind != kind {
        found.push(format!("{name} is a {}, not a {kind}", family.kind));
    }
    if family.labels.is_empty() && has_samples {
        found.push(format!("{name} has no samples"));
    }
    let wanted: Vec<&str> = labels.split(',').filter(|label| !label.is_empty()).collect();
    if let Some(other) = family.labels.iter().find(|found| **found != wanted) {
        found.push(format!("{name} has the labels {other:?}, not {wanted:?}"));
    }
    let wanted: BTreeSet<String> = buckets.split(',').filter(|b| !b.is_empty()).map(str::to_owned).collect();
    if !family.labels.is_empty() && family.buckets != wanted {
        found.push(format!("{name} has the buckets {:?}, not {wanted:?}", family.buckets));
    }
}

fn read(page: &str) -> BTreeMap<&str, Family<'_>> {
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    let mut current = "";
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            current = name;
            families.insert(name, Family { kind, ..Family::default() });
        }
        if line.starts_with('#') {
            continue;
        }
        let Some(family) = families.get_mut(current) else { continue };
        let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
        let mut names: Vec<&str> = Vec::new();
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let Some((name, value)) = label.split_once("=\"") else { continue };
            match (name, value.trim_end_matches('"')) {
                ("le", "+Inf") => {}
                ("le", bound) => {
                    family.buckets.insert(bound.to_owned());
                }
                _ => names.push(name),
            }
        }
        names.sort_unstable();
        family.labels.insert(names);
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_both_there_and_absent() {
        let pages = ["node", "node/resource", "node/probes", "node/cadvisor", "proxy"];
        let served: BTreeSet<&str> = pages.into_iter().flat_map(rows).map(|[name, ..]| name).collect();
        let both: Vec<&str> = absent().filter(|name| served.contains(name)).collect();
        assert!(both.is_empty() && !served.is_empty(), "{both:?}");
    }

    #[test]
    fn what_differs_is_told() {
        let page = "# TYPE kubernetes_healthcheck counter\nkubernetes_healthcheck{name=\"a,b\",kind=\"x\"} 1\n";
        let found = differences("node/slis", page, &[]);
        assert_eq!(
            unlike("node/slis", "# TYPE other gauge\n# TYPE windlass_other gauge\n"),
            ["other is not upstream's"]
        );
        assert_eq!(unlike("node/slis", page)[..], found[..2], "what is not there is in another part");
        assert_eq!(
            found,
            [
                "kubernetes_healthcheck is a counter, not a gauge",
                "kubernetes_healthcheck has the labels [\"kind\", \"name\"], not [\"name\", \"type\"]",
                "kubernetes_healthchecks_total is missing",
            ]
        );
    }
}
