use std::time::Instant;
use serde_json::json;
use windlass_proxy::{apply::*, kernel::Saved, model::*, plan::*, rules::Settings, *};
#[test]
fn scale() {
    let n: u32 = std::env::var("N").unwrap().parse().unwrap();
    let mut model = Model::default();
    for i in 0..n {
        let s = json!({"metadata": {"name": format!("s{i}"), "namespace": "ns"}, "spec": {"clusterIP": format!("172.30.{}.{}", i/250, i%250), "ports": [{"name":"a","port": 80}]}});
        model.put_service(&serde_json::from_value(s).unwrap());
        let e: Vec<_> = (0..5).map(|e| json!({"addresses":[format!("10.{}.{}.{}", e, i/250, i%250)]})).collect();
        let s = json!({"metadata": {"name": format!("s{i}-1"), "namespace": "ns", "labels": {"kubernetes.io/service-name": format!("s{i}")}}, "addressType": "IPv4", "ports": [{"name":"a","port": 80}], "endpoints": e});
        model.put_slice(&serde_json::from_value(s).unwrap(), "n");
    }
    let config = Config { command_prefix: ["ip","netns","exec","pxs"].map(str::to_owned).into(), record: "/tmp/pxs.json".into(), ..Config::default() };
    let b = Backend::find(&Runner::new(config.command_prefix.clone()), Family::V4, Variant::Nft).unwrap();
    let mut l = Ledger::new(Settings::new(Family::V4));
    let sv = b.save(false).unwrap();
    l.adopt(&Saved::parse(&sv).unwrap());
    let t = Instant::now();
    model.services().for_each(|(id, _)| l.take(&model, id));
    let steps = l.steps(b.limit());
    println!("render {:?} steps {}", t.elapsed(), steps.len());
    let t = Instant::now();
    for s in &steps { b.restore(s).unwrap(); l.commit(s); }
    println!("cold {:?}", t.elapsed());
    let s = json!({"metadata": {"name": "s7-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "s7"}}, "addressType": "IPv4", "ports": [{"name":"a","port": 80}], "endpoints": [{"addresses":["10.9.9.9"]}]});
    model.put_slice(&serde_json::from_value(s).unwrap(), "n");
    let t = Instant::now();
    for id in model.take_dirty().0 { if &*id == "ns/s7" { l.take(&model, &id); } }
    let steps = l.steps(b.limit());
    let own = t.elapsed();
    for s in &steps { b.restore(s).unwrap(); l.commit(s); }
    println!("one change {own:?} {:?} {}", t.elapsed(), steps.len());
    let t = Instant::now();
    cleanup(&config).unwrap();
    println!("cleanup {:?}", t.elapsed());
}
