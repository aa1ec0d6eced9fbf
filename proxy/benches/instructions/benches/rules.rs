//! Instructions that the rule builder takes, which are the same on every machine of an architecture: a regression
//! shows without a clock. The limits are a tenth above what was counted when they were set.

use std::hint::black_box;

use gungraun::{
    Callgrind, CallgrindMetrics, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use serde_json::json;
use windlass_proxy::{
    model::{Family, Model, objects},
    plan::{RulesetState, BatchLimit},
    rules::Settings,
};

fn put(model: &mut Model, service: usize, endpoints: usize, moved: usize) {
    let object = json!({"metadata": {"name": format!("s{service}"), "namespace": "ns"}, "spec": {
        "clusterIP": format!("10.96.{}.{}", service / 250, 1 + service % 250), "ports": [{"name": "http", "port": 80}]}});
    let object: objects::Service = serde_json::from_value(object).unwrap();
    model.put_service(&object);
    let list: Vec<_> = (0..endpoints)
        .map(|e| {
            let last = if e == 0 { moved } else { e };
            json!({"addresses": [format!("10.{}.{}.{last}", 100 + service / 250, service % 250)], "nodeName": "n2"})
        })
        .collect();
    let object = json!({"metadata": {"name": format!("s{service}-1"), "namespace": "ns",
                                     "labels": {"kubernetes.io/service-name": format!("s{service}")}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": list});
    let object: objects::EndpointSlice = serde_json::from_value(object).unwrap();
    model.put_slice(&object, "n1");
}

fn write(ruleset: &mut RulesetState, model: &Model) -> usize {
    let mut bytes = 0;
    while let Some(batch) = ruleset.next_batch(model, BatchLimit::Lines(4000)) {
        bytes += batch.text.len();
        ruleset.commit(&batch);
    }
    bytes
}

fn filled(services: usize, endpoints: usize) -> (Model, RulesetState) {
    let mut model = Model::default();
    (0..services).for_each(|s| put(&mut model, s, endpoints, 0));
    let mut ruleset = RulesetState::new(Settings::new(Family::V4));
    model.take_changes().of(Family::V4).iter().for_each(|id| ruleset.mark_dirty(id));
    (model, ruleset)
}

/// Everything is in the kernel, then one endpoint of one service is another.
fn one_endpoint_changed(services: usize, endpoints: usize) -> (Model, RulesetState) {
    let (mut model, mut ruleset) = filled(services, endpoints);
    write(&mut ruleset, &model);
    put(&mut model, services / 2, endpoints, 200);
    model.take_changes().of(Family::V4).iter().for_each(|id| ruleset.mark_dirty(id));
    (model, ruleset)
}

/// The same with one service more.
fn one_service_added(services: usize, endpoints: usize) -> (Model, RulesetState) {
    let (mut model, mut ruleset) = filled(services, endpoints);
    write(&mut ruleset, &model);
    put(&mut model, services, endpoints, 0);
    model.take_changes().of(Family::V4).iter().for_each(|id| ruleset.mark_dirty(id));
    (model, ruleset)
}

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(CallgrindMetrics::SingleEvent(EventKind::Ir), instructions)]));
    config
}

#[library_benchmark]
#[bench::small(args = (100, 10), setup = filled, config = at_most(41_000_000))]
#[bench::large(args = (2000, 10), setup = filled, config = at_most(827_000_000))]
#[bench::one_large_service(args = (1, 200), setup = filled, config = at_most(8_600_000))]
fn full((model, mut ruleset): (Model, RulesetState)) -> (Model, RulesetState) {
    black_box(write(&mut ruleset, &model));
    // What is given back is not taken apart here.
    (model, ruleset)
}

#[library_benchmark]
#[bench::endpoint(args = (2000, 10), setup = one_endpoint_changed, config = at_most(410_000))]
#[bench::service(args = (2000, 10), setup = one_service_added, config = at_most(11_600_000))]
fn change((model, mut ruleset): (Model, RulesetState)) -> (Model, RulesetState) {
    black_box(write(&mut ruleset, &model));
    (model, ruleset)
}

library_benchmark_group!(name = rules, benchmarks = [full, change]);
main!(library_benchmark_groups = rules);
