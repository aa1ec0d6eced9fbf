use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    config::{LARGE_CLUSTER, each_step, is_large},
    explain::Comparison,
    kernel::Saved,
    model::{Family, Model},
    rules::{JUMPS, Layout, Settings, Table, is_dispatch},
};

/// A kernel that understands restore texts: tables, chains and their rules.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
struct Kernel(BTreeMap<(String, String), Vec<String>>);

impl Kernel {
    fn restore(&mut self, text: &str) -> Result<(), String> {
        let mut next = self.0.clone();
        let mut table = String::new();
        for line in text.lines() {
            let word = |i: usize| line.split(' ').nth(i).unwrap_or_default().to_owned();
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            } else if let Some(chain) = line.strip_prefix(':') {
                next.insert((table.clone(), chain.split(' ').next().unwrap().to_owned()), Vec::new());
            } else if line.starts_with("-A ") {
                let rules = next.get_mut(&(table.clone(), word(1))).ok_or_else(|| format!("no chain: {line}"))?;
                rules.push(line.split_once(' ').unwrap().1.split_once(' ').unwrap().1.to_owned());
            } else if line.starts_with("-I ") {
                next.entry((table.clone(), word(1)))
                    .or_default()
                    .insert(0, line.splitn(3, ' ').nth(2).unwrap().to_owned());
            } else if line.starts_with("-X ") {
                let rules = next.remove(&(table.clone(), word(1))).ok_or_else(|| format!("no chain: {line}"))?;
                if !rules.is_empty() {
                    return Err(format!("not empty: {line}"));
                }
            } else if line == "COMMIT" {
                for ((of, chain), rules) in &next {
                    for rule in rules {
                        let target = rule.rsplit(' ').next().unwrap_or_default();
                        if target.starts_with("KUBE-") && !next.contains_key(&(of.clone(), target.to_owned())) {
                            return Err(format!("{chain} leads to {target}, which is not there"));
                        }
                    }
                }
            }
        }
        self.0 = next;
        Ok(())
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for table in Table::BOTH {
            out.push_str(&format!("*{}\n", table.name()));
            for ((_, chain), rules) in self.0.iter().filter(|((t, _), _)| t == table.name()) {
                out.push_str(&format!(":{chain} - [0:0]\n"));
                rules.iter().for_each(|r| out.push_str(&format!("-A {chain} {r}\n")));
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    /// As the loop does it: each step is rendered before the one before is known to be good.
    fn apply(&mut self, ledger: &mut Ledger, model: &Model, limit: Limit) -> usize {
        let mut count = 0;
        let mut next = ledger.next_step(model, limit);
        while let Some(step) = next {
            next = ledger.next_step(model, limit);
            self.restore(&step.text).unwrap_or_else(|e| panic!("{e}\n{}", step.text));
            ledger.commit(&step);
            count += 1;
        }
        count
    }
}

/// What differs from a fresh start's rules, rendered in pieces.
fn drift(model: &Model, kernel: &Kernel) -> Vec<String> {
    let text = kernel.text();
    let saved = Saved::parse(&text).unwrap();
    let mut comparison = Comparison::new(&saved);
    each_step(model, settings(), Limit::Lines(5), |step| comparison.look(&Saved::parse(&step.text).unwrap()));
    comparison.end().into_iter().map(|d| format!("{} {}", d.chain, d.problem)).collect()
}

fn settings() -> Settings {
    Settings::new(Family::V4)
}

fn put(model: &mut Model, service: u8, endpoints: &[u8], local_policy: bool) {
    let policy = if local_policy { "Local" } else { "Cluster" };
    let object = json!({"metadata": {"name": format!("s{service}"), "namespace": "ns"}, "spec": {
        "type": "LoadBalancer", "clusterIP": format!("172.30.0.{service}"), "externalTrafficPolicy": policy,
        "ports": [{"name": "a", "port": 80, "nodePort": 3000 + u16::from(service)}, {"name": "b", "port": 81, "protocol": "UDP"}]}});
    model.put_service(&serde_json::from_value(object).unwrap());
    put_slice(model, service, endpoints);
}

fn put_slice(model: &mut Model, service: u8, endpoints: &[u8]) {
    let list: Vec<_> = endpoints
        .iter()
        .map(|e| json!({"addresses": [format!("10.180.{service}.{e}")], "nodeName": if e % 2 == 0 { "n1" } else { "n2" }}))
        .collect();
    let object = json!({"metadata": {"name": format!("s{service}-1"), "namespace": "ns", "labels": {"kubernetes.io/service-name": format!("s{service}")}},
        "addressType": "IPv4", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "protocol": "UDP"}], "endpoints": list});
    model.put_slice(&serde_json::from_value(object).unwrap(), "n1");
}

fn remove(model: &mut Model, service: u8) {
    let object = json!({"metadata": {"name": format!("s{service}"), "namespace": "ns"}});
    model.delete_service(&serde_json::from_value(object).unwrap());
}

fn fresh(model: &Model, limit: Limit) -> Kernel {
    fresh_with(model, limit, settings())
}

fn fresh_with(model: &Model, limit: Limit, settings: Settings) -> Kernel {
    let mut ledger = Ledger::new(Settings { large: is_large(model, settings.family), ..settings });
    ledger.adopt(&Saved::default());
    model.services().for_each(|(id, _)| ledger.touch(id));
    let mut kernel = Kernel::default();
    kernel.apply(&mut ledger, model, limit);
    kernel
}

fn take(ledger: &mut Ledger, model: &mut Model) {
    let settings = Settings { large: is_large(model, Family::V4), ..ledger.settings().clone() };
    if ledger.set(settings) {
        model.services().for_each(|(id, _)| ledger.touch(id));
    }
    model.take_dirty().0.iter().for_each(|id| ledger.touch(id));
}

fn steps(ledger: &mut Ledger, model: &Model) -> Vec<Step> {
    std::iter::from_fn(|| ledger.next_step(model, Limit::None)).collect()
}

fn sync(ledger: &mut Ledger, model: &mut Model, kernel: &mut Kernel, limit: Limit) -> usize {
    take(ledger, model);
    kernel.apply(ledger, model, limit)
}

#[test]
fn nothing_is_written_twice_and_only_what_changed() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ledger = Ledger::new(settings());
    ledger.adopt(&Saved::default());
    (1..=3).for_each(|s| put(&mut model, s, &[1, 2], false));
    assert_eq!(sync(&mut ledger, &mut model, &mut kernel, Limit::None), 1);
    assert_eq!(sync(&mut ledger, &mut model, &mut kernel, Limit::None), 0);
    assert_eq!(JUMPS.len(), kernel.0.values().flatten().filter(|r| JUMPS.iter().any(|j| j.rule() == **r)).count());

    // The same objects again: nothing. A third endpoint: the two balancing chains and two new ones.
    put(&mut model, 2, &[1, 2], false);
    assert!(!model.is_dirty());
    put_slice(&mut model, 2, &[1, 2, 3]);
    take(&mut ledger, &mut model);
    let steps = steps(&mut ledger, &model);
    let heads: Vec<&str> = steps[0].text.lines().filter(|l| l.starts_with(':')).map(|l| &l[1..9]).collect();
    assert_eq!(
        (steps.len(), heads.as_slice()),
        (1, ["KUBE-SVC", "KUBE-SEP", "KUBE-SVC", "KUBE-SEP"].as_slice()),
        "{}",
        steps[0].text
    );
    assert!(!steps[0].text.contains("*filter") && !steps[0].text.contains("KUBE-SERVICES"));
    kernel.restore(&steps[0].text).unwrap();
    ledger.commit(&steps[0]);

    // A service that goes takes its chains with it.
    remove(&mut model, 2);
    assert_eq!(sync(&mut ledger, &mut model, &mut kernel, Limit::None), 1);
    assert_eq!(kernel, fresh(&model, Limit::None));
    let text = kernel.text();
    assert_eq!(drift(&model, &kernel), [] as [String; 0]);
    assert_eq!(
        ledger.rules(Table::Nat) + ledger.rules(Table::Filter) + JUMPS.len() as u64,
        text.lines().filter(|l| l.starts_with("-A")).count() as u64
    );
}

#[test]
fn drift_is_seen_and_adopted_chains_are_removed() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ledger = Ledger::new(settings());
    kernel.restore("*nat\n:KUBE-SVC-OLD - [0:0]\n:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]\n-A KUBE-SVC-OLD -j KUBE-SEP-AAAAAAAAAAAAAAAA\n:KUBE-XLB-A - [0:0]\nCOMMIT\n").unwrap();
    ledger.adopt(&Saved::parse(&kernel.text()).unwrap());
    put(&mut model, 1, &[1, 2], true);
    sync(&mut ledger, &mut model, &mut kernel, Limit::None);
    let has = |kernel: &Kernel, name: &str| kernel.0.keys().any(|(_, c)| c == name);
    assert!(!has(&kernel, "KUBE-SVC-OLD") && !has(&kernel, "KUBE-SEP-AAAAAAAAAAAAAAAA") && has(&kernel, "KUBE-XLB-A"));
    assert_eq!(drift(&model, &kernel), [] as [String; 0]);
    let nat = |name: &str| ("nat".to_owned(), name.to_owned());
    let mut edited = kernel.clone();
    edited.0.get_mut(&nat("KUBE-MARK-MASQ")).unwrap().clear();
    assert_eq!(
        drift(&model, &edited),
        ["KUBE-MARK-MASQ rule 1 should be \"-j MARK --or-mark 0x00004000\" and is nothing"]
    );
    edited.0.remove(&nat("KUBE-MARK-MASQ"));
    edited.0.get_mut(&nat("PREROUTING")).unwrap().clear();
    assert_eq!(drift(&model, &edited), ["KUBE-MARK-MASQ is missing", "PREROUTING does not lead to KUBE-SERVICES"]);
}

#[test]
fn deletions_stand_apart_when_asked() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ledger = Ledger::new(settings());
    ledger.adopt(&Saved::default());
    put(&mut model, 1, &[1, 2], false);
    sync(&mut ledger, &mut model, &mut kernel, Limit::None);
    ledger.delete_apart(true);
    put_slice(&mut model, 1, &[1]);
    take(&mut ledger, &mut model);
    let steps = steps(&mut ledger, &model);
    assert_eq!(steps.iter().map(|s| s.text.contains("-X ")).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn many_endpoints_lose_their_comments_and_get_them_back() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ledger = Ledger::new(settings());
    ledger.adopt(&Saved::default());
    let many: Vec<u8> = (1..=200).collect();
    (1..=3).for_each(|s| put(&mut model, s, &many, false));
    sync(&mut ledger, &mut model, &mut kernel, Limit::Lines(500));
    assert!(model.endpoint_count(Family::V4) > LARGE_CLUSTER && !kernel.text().contains(" -> 10.180"));
    remove(&mut model, 3);
    sync(&mut ledger, &mut model, &mut kernel, Limit::Lines(500));
    assert!(kernel.text().contains(" -> 10.180"));
    assert_eq!(kernel, fresh(&model, Limit::None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever happens in whatever portions, and however large a step may be, the kernel ends up
    /// with the rules that a fresh start would write, and no step leads to a chain that is not there.
    #[test]
    fn any_way_leads_to_the_same_rules(
        changes in prop::collection::vec((1u8..6, prop::collection::vec(1u8..7, 0..5), any::<bool>(), 0u8..4), 1..30),
        small in any::<bool>(),
        tree in any::<bool>(),
    ) {
        let settings = || Settings { layout: if tree { Layout::Tree } else { Layout::Auto }, ..settings() };
        let limit = if small { Limit::Lines(12) } else { Limit::None };
        let (mut model, mut kernel) = (Model::default(), Kernel::default());
        let mut ledger = Ledger::new(settings());
        ledger.adopt(&Saved::default());
        for (service, endpoints, local, what) in changes {
            match what {
                0 => remove(&mut model, service),
                1 => put_slice(&mut model, service, &endpoints),
                _ => put(&mut model, service, &endpoints, local),
            }
            if what != 3 {
                sync(&mut ledger, &mut model, &mut kernel, limit);
            }
        }
        sync(&mut ledger, &mut model, &mut kernel, limit);
        prop_assert_eq!(&kernel, &fresh_with(&model, Limit::None, settings()));
        prop_assert_eq!(sync(&mut ledger, &mut model, &mut kernel, limit), 0);
        // A restart over what is there ends the same, and so does one over half of it.
        let mut again = Ledger::new(settings());
        again.adopt(&Saved::parse(&kernel.text()).unwrap());
        model.services().for_each(|(id, _)| again.touch(id));
        let mut second = kernel.clone();
        second.apply(&mut again, &model, limit);
        prop_assert_eq!(second, kernel);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Services come and go around the number at which chains become trees, and endpoints around theirs.
    #[test]
    fn trees_come_and_go_with_numbers(
        changes in prop::collection::vec((20u8..45, prop::collection::btree_set(1u8..40, 0..30), 0u8..3), 1..25),
    ) {
        let (mut model, mut kernel) = (Model::default(), Kernel::default());
        let mut ledger = Ledger::new(settings());
        ledger.adopt(&Saved::default());
        // Two ports and a load balancer's address each: 60 lines.
        (1..=30).for_each(|s| put(&mut model, s, &[1], false));
        for (service, endpoints, what) in changes {
            let endpoints: Vec<u8> = endpoints.into_iter().collect();
            match what {
                0 => remove(&mut model, service),
                _ => put(&mut model, service, &endpoints, false),
            }
            sync(&mut ledger, &mut model, &mut kernel, Limit::Lines(40));
            let lines = kernel.text().lines().filter(|l| l.contains("cluster IP") && l.contains("-j KUBE-SVC")).count();
            let tree = kernel.0.keys().any(|(table, chain)| table == "nat" && is_dispatch(chain));
            prop_assert!(tree || lines <= 64, "{} lines", lines);
        }
        prop_assert_eq!(&kernel, &fresh(&model, Limit::None));
        // All go: no chain of a tree stays.
        (1..=45).for_each(|s| remove(&mut model, s));
        sync(&mut ledger, &mut model, &mut kernel, Limit::Lines(40));
        prop_assert!(!kernel.0.keys().any(|(_, chain)| is_dispatch(chain)));
        prop_assert_eq!(&kernel, &fresh(&model, Limit::None));
    }
}
