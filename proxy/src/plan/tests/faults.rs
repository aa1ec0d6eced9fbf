//! Failures after any COMMIT, what earlier versions left, and what a kernel lacks.

use super::*;

/// A chain that was emptied and could not be deleted is written again when it is wanted again, with the same rules.
#[test]
fn a_chain_that_was_flushed_alone_is_written_when_it_is_wanted_again() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    put(&mut model, 1, &[1, 2], false);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    put_slice(&mut model, 1, &[1]);
    apply_changes(&mut ruleset, &mut model);
    let batch = batches(&mut ruleset, &model).remove(0);
    let plain = batch.without_deletions();
    kernel.restore(&plain.text).unwrap();
    ruleset.commit(&plain);
    ruleset.mark_undeletable(batch.deletions());
    put_slice(&mut model, 1, &[1, 2]);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    assert_eq!(kernel, fresh(&model, BatchLimit::None));
}

/// After every restore of a start, and of a change that deletes much, each fault once: it ends in the same rules, base
/// chains included.
#[test]
fn a_fault_at_any_restore_ends_in_the_same_rules() {
    for limit in [BatchLimit::None, BatchLimit::Lines(12)] {
        let mut model = Model::default();
        (1..=4).for_each(|s| put(&mut model, s, &[1, 2, 3], s % 2 == 0));
        model.take_changes();
        let mut after = model.clone();
        remove(&mut after, 2);
        put_slice(&mut after, 3, &[]);
        put(&mut after, 5, &[4], true);
        let changed: Vec<_> = after.take_changes().of(Family::V4).iter().cloned().collect();
        let run = |fault: Option<(usize, Fault)>| {
            let mut kernel = Kernel::default();
            let mut ruleset = RulesetState::new(settings());
            ruleset.resync_from_kernel(&SavedRuleset::default());
            ruleset.mark_all_dirty(&model);
            let mut total = 0;
            let mut faults = |at: usize| fault.filter(|(when, _)| *when == at).map(|(_, fault)| fault);
            total += kernel.apply_with(&mut ruleset, &model, limit, &mut faults);
            assert_eq!((kernel.repeated(), &kernel), (vec![], &fresh(&model, BatchLimit::None)), "{fault:?}");
            changed.iter().for_each(|id| ruleset.mark_dirty(id));
            let begun = total;
            total += kernel.apply_with(&mut ruleset, &after, limit, &mut |at| faults(begun + at));
            assert_eq!((kernel.repeated(), &kernel), (vec![], &fresh(&after, BatchLimit::None)), "{fault:?}");
            total
        };
        let restores = run(None);
        assert!(restores >= 4, "{restores}");
        for at in 0..restores {
            for fault in FAULTS {
                run(Some((at, fault)));
            }
        }
    }
}

/// What a kernel lacks, and which ports it refuses, is read from what its proxy has written.
#[test]
fn what_a_proxy_does_without_is_no_difference() {
    let json = json!({"metadata": {"name": "sticky", "namespace": "ns"}, "spec": {"clusterIP": "172.30.0.9",
        "sessionAffinity": "ClientIP", "ports": [{"name": "a", "port": 80}, {"name": "s", "port": 81, "protocol": "SCTP"}]}});
    let services = vec![serde_json::from_value(json).unwrap()];
    let json = json!({"metadata": {"name": "sticky-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "sticky"}},
        "addressType": "IPv4", "ports": [{"name": "a", "port": 80}, {"name": "s", "port": 81, "protocol": "SCTP"}],
        "endpoints": [{"addresses": ["10.180.0.1"]}]});
    let slices = vec![serde_json::from_value(json).unwrap()];
    let objects = Objects { services, slices, ..Objects::default() };
    let config = crate::Config::default();
    let render = |observed: &Observed| rules_of_objects(&objects, &config, Family::V4, observed);
    let all = render(&Observed::default());
    assert!(all.contains("-m recent ") && all.contains("-p sctp ") && all.contains("--ctstate INVALID"));
    assert_eq!(render(&Observed::of(&all)), all);
    let mut model = Model::default();
    model.put_service(&objects.services[0]);
    model.put_slice(&objects.slices[0], "");
    for without in ["recent", "sctp", "drop_invalid", "refused"] {
        let settings = config.settings(Family::V4, &crate::model::NodeFacts::default(), &[]);
        let mut ruleset = RulesetState::new(match without {
            "recent" => Settings { recent: false, ..settings },
            "sctp" => Settings { sctp: false, ..settings },
            "drop_invalid" => Settings { drop_invalid: false, ..settings },
            _ => settings,
        });
        if without == "refused" {
            ruleset.quarantine_port(&model, "ns/sticky:a");
        }
        let mut written = String::new();
        for_each_batch(&model, ruleset, BatchLimit::None, |batch| written.push_str(&batch.text));
        assert_ne!(written, all, "{without}");
        assert_eq!(render(&Observed::of(&written)), written, "{without}");
    }
}

/// What an earlier version left: jumps that were inserted again and again.
#[test]
fn copies_of_jumps_are_seen_and_removed() {
    let (mut model, mut kernel) = (Model::default(), Kernel::default());
    let mut ruleset = RulesetState::new(settings());
    ruleset.resync_from_kernel(&SavedRuleset::default());
    put(&mut model, 1, &[1], false);
    sync(&mut ruleset, &mut model, &mut kernel, BatchLimit::None);
    let good = kernel.clone();
    for _ in 0..3 {
        kernel.restore(&format!("*filter\n-I INPUT {}\nCOMMIT\n", JUMPS[0].rule())).unwrap();
    }
    kernel.restore("*filter\n-I FORWARD -i eth9 -j KUBE-FORWARD\nCOMMIT\n").unwrap();
    assert_eq!(drift(&model, &kernel), ["INPUT leads to KUBE-EXTERNAL-SERVICES more than once"]);
    let found = compare_with_kernel(&model, &ruleset, &kernel.text()).unwrap();
    assert!(!found.differences[0].problem.may_be_form());
    ruleset.resync(found.kernel, found.verified);
    ruleset.mark_all_dirty(&model);
    assert_eq!(kernel.apply(&mut ruleset, &model, BatchLimit::None), 1);
    kernel.restore("*filter\n-D FORWARD -i eth9 -j KUBE-FORWARD\nCOMMIT\n").unwrap();
    assert_eq!(kernel.repeated(), [] as [String; 0]);
    assert!(kernel.0.iter().all(|(chain, rules)| {
        let (mut a, mut b) = (rules.clone(), good.0[chain].clone());
        a.sort();
        b.sort();
        a == b
    }));
}
