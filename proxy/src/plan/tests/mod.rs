mod comparisons;
mod faults;
mod kernel;

use kernel::{FAULTS, Fault, Kernel};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    explain::Comparison,
    iptables_save::{ParseError, SavedRuleset},
    model::{Family, Model},
    rules::{JUMPS, Layout, Settings, Table, is_tree_chain},
};

/// What differs from a fresh start's rules, rendered in pieces.
fn drift(model: &Model, kernel: &Kernel) -> Vec<String> {
    let text = kernel.text();
    let saved = SavedRuleset::parse(&text).unwrap();
    let mut comparison = Comparison::new(&saved);
    for_each_batch(model, RulesetState::new(settings()), BatchLimit::Lines(5), |batch| {
        comparison.compare(&SavedRuleset::parse(&batch.text).unwrap(), |_, _| false);
    });
    comparison.finish().into_iter().map(|d| format!("{} {}", d.chain, d.problem)).collect()
}

/// Reads what is printed of a kernel.
fn read<'r>(ruleset: &'r RulesetState, saved: &str) -> Result<ReadKernel<'r>, ParseError> {
    let read = read_kernel(ruleset, |each| {
        saved.lines().for_each(|line| each(line.as_bytes()));
        Ok::<_, std::convert::Infallible>(())
    });
    read.unwrap()
}

fn compare_with_kernel(model: &Model, ruleset: &RulesetState, saved: &str) -> Result<KernelComparison, ParseError> {
    read(ruleset, saved)?.compare(model)
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

fn fresh(model: &Model, limit: BatchLimit) -> Kernel {
    fresh_with(model, limit, settings())
}

fn fresh_with(model: &Model, limit: BatchLimit, settings: Settings) -> Kernel {
    let mut ruleset =
        RulesetState::new(Settings { large: is_large_cluster(model, settings.family, false), ..settings });
    ruleset.resync_from_kernel(&SavedRuleset::default());
    ruleset.mark_all_dirty(model);
    let mut kernel = Kernel::default();
    kernel.apply(&mut ruleset, model, limit);
    kernel
}

fn apply_changes(ruleset: &mut RulesetState, model: &mut Model) {
    model.take_changes().of(Family::V4).iter().for_each(|id| ruleset.mark_dirty(id));
    let was = ruleset.settings().large;
    let settings = Settings { large: is_large_cluster(model, Family::V4, was), ..ruleset.settings().clone() };
    if ruleset.set(settings) {
        ruleset.mark_all_dirty(model);
    }
}

fn batches(ruleset: &mut RulesetState, model: &Model) -> Vec<TableBatch> {
    std::iter::from_fn(|| ruleset.next_batch(model, BatchLimit::None)).collect()
}

fn sync(ruleset: &mut RulesetState, model: &mut Model, kernel: &mut Kernel, limit: BatchLimit) -> usize {
    apply_changes(ruleset, model);
    kernel.apply(ruleset, model, limit)
}

#[test]
fn nothing_is_written_twice_and_only_what_changed() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    (1..=3).for_each(|s| put(&mut model, s, &[1, 2], false));
    assert_eq!(sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None), 2, "one for each table");
    assert_eq!(sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None), 0);
    assert_eq!(JUMPS.len(), kernel.0.values().flatten().filter(|r| JUMPS.iter().any(|j| j.rule() == **r)).count());

    // The same objects again: nothing. A third endpoint: the two balancing chains and two new ones.
    put(&mut model, 2, &[1, 2], false);
    assert!(!model.is_dirty());
    put_slice(&mut model, 2, &[1, 2, 3]);
    apply_changes(&mut ruleset, &mut model);
    let batches = batches(&mut ruleset, &model);
    let heads: Vec<&str> = batches[0].text.lines().filter(|l| l.starts_with(':')).map(|l| &l[1..9]).collect();
    assert_eq!(
        (batches.len(), heads.as_slice()),
        (1, ["KUBE-SVC", "KUBE-SEP", "KUBE-SVC", "KUBE-SEP"].as_slice()),
        "{}",
        batches[0].text
    );
    assert!(!batches[0].text.contains("*filter") && !batches[0].text.contains("KUBE-SERVICES"));
    kernel.restore(&batches[0].text).unwrap();
    ruleset.commit(&batches[0]);

    // A deleted service has its chains deleted.
    remove(&mut model, 2);
    assert_eq!(sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None), 1);
    assert_eq!(kernel, fresh(&model, BatchLimit::None));
    let text = kernel.text();
    assert_eq!(drift(&model, &kernel), [] as [String; 0]);
    assert_eq!(
        ruleset.rules(Table::Nat) + ruleset.rules(Table::Filter) + JUMPS.len() as u64,
        text.lines().filter(|l| l.starts_with("-A")).count() as u64
    );
}

#[test]
fn drift_is_seen_and_adopted_chains_are_removed() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    kernel.restore("*nat\n:KUBE-SVC-OLD - [0:0]\n:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]\n-A KUBE-SVC-OLD -j KUBE-SEP-AAAAAAAAAAAAAAAA\n:KUBE-XLB-A - [0:0]\nCOMMIT\n").unwrap();
    ruleset.resync_from_kernel(&SavedRuleset::parse(&kernel.text()).unwrap());
    put(&mut model, 1, &[1, 2], true);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
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
fn a_chain_that_cannot_be_deleted_is_left_alone_until_it_is_tried_again() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    put(&mut model, 1, &[1, 2], false);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    put_slice(&mut model, 1, &[1]);
    apply_changes(&mut ruleset, &mut model);
    let batches = batches(&mut ruleset, &model);
    let (batch, plain) = (&batches[0], batches[0].without_deletions());
    assert!(batches.len() == 1 && batch.deletes() && !plain.deletes() && !plain.text.contains("-X "), "{}", batch.text);
    assert_eq!(batch.table, Table::Nat);
    let deletions: Vec<(Table, String)> = batch.deletions().collect();
    assert_eq!(deletions.len(), 2);
    kernel.restore(&plain.text).unwrap();
    ruleset.commit(&plain);
    ruleset.mark_undeletable(deletions.clone());
    // They are no drift, and do not keep anything else from being written.
    let found = compare_with_kernel(&model, &ruleset, &kernel.text()).unwrap();
    assert_eq!(found.differences, []);
    put(&mut model, 2, &[1], false);
    assert_eq!(sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None), 1);
    assert_eq!(ruleset.undeletable().len(), 2);
    // One is wanted again; the other is removed.
    put_slice(&mut model, 1, &[1, 2]);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert_eq!(ruleset.undeletable().len(), 0);
    put_slice(&mut model, 1, &[1]);
    ruleset.retry_deletions();
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert_eq!(kernel, fresh(&model, BatchLimit::None));
}

#[test]
fn what_the_kernel_holds_already_is_not_written_again() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    (1..=3).for_each(|s| put(&mut model, s, &[1, 2], true));
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    let resynced = |kernel: &Kernel| {
        let mut again = RulesetState::new(settings());
        let found = compare_with_kernel(&model, &again, &kernel.text()).unwrap();
        again.resync(found.kernel, found.verified);
        again.mark_all_dirty(&model);
        again
    };
    let mut again = resynced(&kernel);
    assert_eq!(batches(&mut again, &model), []);
    assert_eq!(again.rules(Table::Nat), ruleset.rules(Table::Nat));
    // One chain differs, one is missing, one is extra, and a jump is missing: these and no other.
    let nat = |name: &str| ("nat".to_owned(), name.to_owned());
    let mut edited = kernel.clone();
    edited.0.get_mut(&nat("KUBE-MARK-MASQ")).unwrap().clear();
    let sep = edited.0.keys().find(|(_, c)| c.starts_with("KUBE-SEP-")).unwrap().clone();
    edited.0.get_mut(&sep).unwrap().pop();
    edited.0.insert(nat("KUBE-SVC-AAAAAAAAAAAAAAAA"), Vec::new());
    edited.0.get_mut(&nat("PREROUTING")).unwrap().clear();
    let mut again = resynced(&edited);
    let batches = batches(&mut again, &model);
    let mut heads: Vec<&str> = batches[0].text.lines().filter_map(|l| l.strip_prefix(':')?.split(' ').next()).collect();
    heads.sort_unstable();
    assert_eq!((batches.len(), heads), (1, vec!["KUBE-MARK-MASQ", sep.1.as_str(), "KUBE-SVC-AAAAAAAAAAAAAAAA"]));
    assert_eq!(batches[0].text.lines().filter(|l| l.starts_with("-I ")).count(), 1);
    edited.restore(&batches[0].text).unwrap();
    assert_eq!(edited, kernel);
}

#[test]
fn a_refused_service_port_is_left_out_until_it_changes() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    (1..=2).for_each(|s| put(&mut model, s, &[1], false));
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    let owner = |line: &str, ruleset: &RulesetState| ruleset.service_port_of_rule(line).map(|o| o.to_string());
    let text = kernel.text();
    let of_chain = text.lines().find(|l| l.starts_with("-A KUBE-SVC-")).unwrap();
    assert!(owner(of_chain, &ruleset).unwrap().starts_with("ns/s"));
    let refusal = "-A KUBE-SERVICES -m comment --comment \"ns/s2:b has no endpoints\" -m udp -p udp -j REJECT";
    assert_eq!(owner(refusal, &ruleset).as_deref(), Some("ns/s2:b"));
    assert_eq!(owner("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000", &ruleset), None);

    let count = |kernel: &Kernel, what: &str| kernel.text().lines().filter(|l| l.contains(what)).count();
    assert!(ruleset.quarantine_port(&model, "ns/s1:a") && !ruleset.quarantine_port(&model, "ns/other"));
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert!(count(&kernel, "ns/s1:a has no endpoints") > 0 && count(&kernel, "ns/s1:b cluster IP") > 0);
    assert_eq!(compare_with_kernel(&model, &ruleset, &kernel.text()).unwrap().differences, []);
    assert!(ruleset.quarantine_port(&model, "ns/s1:a"));
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert_eq!((count(&kernel, "ns/s1:a"), ruleset.quarantined()), (0, 1));
    assert!(!ruleset.quarantine_port(&model, "ns/s1:a"), "there is nothing more to leave out");
    // Its endpoints make no difference to what was refused; the Service may.
    put_slice(&mut model, 1, &[1, 3]);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert_eq!(count(&kernel, "ns/s1:a"), 0);
    put(&mut model, 1, &[1, 3], true);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert_eq!((ruleset.quarantined(), &kernel), (0, &fresh(&model, BatchLimit::None)));
    assert!(ruleset.quarantine_port(&model, "ns/s2:b"));
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    ruleset.release_quarantine();
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert_eq!(kernel, fresh(&model, BatchLimit::None));
}

#[test]
fn a_large_service_is_written_in_steps_each_of_which_leads_somewhere() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    let many: Vec<u8> = (1..=200).collect();
    put(&mut model, 1, &many, true);
    let longest = |batches: &[TableBatch]| batches.iter().map(|s| s.lines).max().unwrap();
    apply_changes(&mut ruleset, &mut model);
    let batches: Vec<TableBatch> = std::iter::from_fn(|| ruleset.next_batch(&model, BatchLimit::Lines(100))).collect();
    assert!(longest(&batches) < 150, "{}", longest(&batches));
    for batch in &batches {
        kernel.restore(&batch.text).unwrap();
        ruleset.commit(batch);
    }
    assert_eq!(kernel, fresh(&model, BatchLimit::None));
    put_slice(&mut model, 1, &many[..180]);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::Lines(50));
    assert_eq!(kernel, fresh(&model, BatchLimit::None));
}

/// The rules that are written around the size of a large cluster are those that change anyway; comments of others follow
/// when they are renewed.
#[test]
fn large_clusters_lose_comments_by_service_and_regain_them() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    let many: Vec<u8> = (1..=200).collect();
    // The Services whose endpoints have comments.
    let commented = |kernel: &Kernel| -> Vec<u8> {
        (1..=4).filter(|service| kernel.text().contains(&format!(" -> 10.180.{service}."))).collect()
    };
    let written = |batches: &[TableBatch], service: u8| {
        batches.iter().any(|batch| batch.text.contains(&format!(" --to-destination 10.180.{service}.")))
    };
    let step = |ruleset: &mut RulesetState, model: &mut Model, kernel: &mut Kernel| -> Vec<u8> {
        apply_changes(ruleset, model);
        let batches = batches(ruleset, model);
        for batch in &batches {
            kernel.restore(&batch.text).unwrap();
            ruleset.commit(batch);
        }
        let found = compare_with_kernel(model, ruleset, &kernel.text()).unwrap();
        assert_eq!(found.differences, []);
        (1..=4).filter(|service| written(&batches, *service)).collect()
    };
    (1..=2).for_each(|s| put(&mut model, s, &many, false));
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [1, 2]);
    // With the third it is a large cluster.
    put(&mut model, 3, &many, false);
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [3]);
    assert!(model.endpoint_count(Family::V4) > LARGE_CLUSTER_ENDPOINTS && ruleset.settings().large);
    assert_eq!(commented(&kernel), [1, 2]);
    put_slice(&mut model, 1, &many[..199]);
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [1]);
    assert_eq!(commented(&kernel), [2]);
    // A restart in between compares as a fresh start does; ours renews what is left.
    assert!(ruleset.renew_comments() && !ruleset.renew_comments());
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [2]);
    assert_eq!((commented(&kernel), &kernel), (vec![], &fresh(&model, BatchLimit::None)));
    // Around the number nothing is written again and again.
    put_slice(&mut model, 3, &many[..60]);
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [] as [u8; 0]);
    assert!((901..=LARGE_CLUSTER_ENDPOINTS).contains(&model.endpoint_count(Family::V4)) && ruleset.settings().large);
    // A small one again: others get their comments back with a change, or when it is time.
    remove(&mut model, 3);
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [] as [u8; 0]);
    assert!(!ruleset.settings().large && commented(&kernel).is_empty());
    put(&mut model, 4, &[1], false);
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [4]);
    assert_eq!(commented(&kernel), [4]);
    // Large and small again: what was not written has the comments of before.
    put(&mut model, 3, &many, false);
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [3]);
    remove(&mut model, 3);
    step(&mut ruleset, &mut model, &mut kernel);
    assert_eq!(commented(&kernel), [4]);
    assert!(ruleset.renew_comments());
    assert_eq!(step(&mut ruleset, &mut model, &mut kernel), [1, 2]);
    assert_eq!(kernel, fresh(&model, BatchLimit::None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever changes in whatever portions, and however large a batch may be, the kernel ends up
    /// with the rules that a fresh start would write, and no batch jumps to a chain that does not exist.
    #[test]
    fn any_way_leads_to_the_same_rules(
        changes in prop::collection::vec((1u8..6, prop::collection::vec(1u8..7, 0..5), any::<bool>(), 0u8..4), 1..30),
        small in any::<bool>(),
        tree in any::<bool>(),
        fails in prop::collection::vec(prop::option::of((0usize..8, prop::sample::select(&FAULTS[..]))), 31),
        one_by_one in any::<bool>(),
    ) {
        let settings = || Settings { layout: if tree { Layout::Tree } else { Layout::Auto }, ..settings() };
        let limit = if small { BatchLimit::Lines(12) } else { BatchLimit::None };
        let (mut model, mut kernel) = (Model::default(), Kernel::default());
        let mut ruleset = RulesetState::new(settings());
        ruleset.resync_from_kernel(&SavedRuleset::default());
        ruleset.limit_services_per_batch(if one_by_one { 1 } else { usize::MAX });
        for ((service, endpoints, local, what), fault) in changes.into_iter().zip(fails) {
            // One restore of a write fails: what comes before it is in the kernel, the rest is not.
            if let Some((at, fault)) = fault {
                apply_changes(&mut ruleset, &mut model);
                kernel.apply_with(&mut ruleset, &model, limit, &mut |i| (i == at).then_some(fault));
                prop_assert_eq!(kernel.repeated(), Vec::<String>::new());
            }
            match what {
                0 => remove(&mut model, service),
                1 => put_slice(&mut model, service, &endpoints),
                _ => put(&mut model, service, &endpoints, local),
            }
            if what != 3 {
                sync(&mut ruleset, &mut model, &mut kernel, limit);
            }
        }
        sync(&mut ruleset, &mut model, &mut kernel, limit);
        prop_assert_eq!(&kernel, &fresh_with(&model, BatchLimit::None, settings()));
        prop_assert_eq!(sync(&mut ruleset, &mut model, &mut kernel, limit), 0);
        // A restart with these rules in the kernel ends in the same state, and so does one with half of them.
        let mut again = RulesetState::new(settings());
        again.resync_from_kernel(&SavedRuleset::parse(&kernel.text()).unwrap());
        again.mark_all_dirty(&model);
        let mut second = kernel.clone();
        second.apply(&mut again, &model, limit);
        prop_assert_eq!(&second, &kernel);
        let found = compare_with_kernel(&model, &RulesetState::new(settings()), &kernel.text()).unwrap();
        prop_assert_eq!(&found.differences, &[]);
        again.resync(found.kernel, found.verified);
        again.mark_all_dirty(&model);
        prop_assert_eq!(second.apply(&mut again, &model, limit), 0);
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
        let mut ruleset = RulesetState::new(settings());
        ruleset.resync_from_kernel(&SavedRuleset::default());
        // Two ports and a load balancer's address each: 60 lines.
        (1..=30).for_each(|s| put(&mut model, s, &[1], false));
        for (service, endpoints, what) in changes {
            let endpoints: Vec<u8> = endpoints.into_iter().collect();
            match what {
                0 => remove(&mut model, service),
                _ => put(&mut model, service, &endpoints, false),
            }
            sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::Lines(40));
            let lines = kernel.text().lines().filter(|l| l.contains("cluster IP") && l.contains("-j KUBE-SVC")).count();
            let tree = kernel.0.keys().any(|(table, chain)| table == "nat" && is_tree_chain(chain));
            prop_assert!(tree || lines <= 64, "{} lines", lines);
        }
        prop_assert_eq!(&kernel, &fresh(&model, BatchLimit::None));
        // All go: no chain of a tree stays.
        (1..=45).for_each(|s| remove(&mut model, s));
        sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::Lines(40));
        prop_assert!(!kernel.0.keys().any(|(_, chain)| is_tree_chain(chain)));
        prop_assert_eq!(&kernel, &fresh(&model, BatchLimit::None));
    }
}
