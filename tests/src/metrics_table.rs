//! The metrics that others depend on, as upstream serves them: `metrics.tsv`, recorded from Kubernetes 1.36 and its
//! sources, of what the public rules and dashboards of kube-prometheus ask for.

use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = include_str!("metrics.tsv");

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
    let rows = TABLE.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>());
    let mut found = Vec::new();
    for row in rows {
        let [page, name, kind, labels, buckets] = row[..] else { panic!("{row:?} has not five columns") };
        if page != of {
            continue;
        }
        let Some(family) = families.get(name) else {
            found.push(format!("{name} is missing"));
            continue;
        };
        if family.kind != kind {
            found.push(format!("{name} is a {}, not a {kind}", family.kind));
        }
        if family.labels.is_empty() && !silent.contains(&name) {
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
    found
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
    fn what_differs_is_told() {
        let page = "# TYPE kubernetes_healthcheck counter\nkubernetes_healthcheck{name=\"a,b\",kind=\"x\"} 1\n";
        let found = differences("node/slis", page, &[]);
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
