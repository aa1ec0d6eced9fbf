//! A watch over the router, replayed on the list at its revision, gives the list at every later one, with a selector too.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Listed = BTreeMap<String, u64>;

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

async fn listed(api: &Api, query: &str) -> (u64, Listed) {
    let list = call(api, "GET", &format!("{MAPS}?{query}"), Value::Null).await.body;
    let items = list["items"].as_array().unwrap();
    (revision(&list), items.iter().map(|o| (name(o), revision(o))).collect())
}

/// All events of a watch up to the object that was created last for it.
async fn watch_until(api: &Api, query: &str, last: &str) -> Vec<Value> {
    let mut watch = Watching::open(api, format!("{MAPS}?watch=1&{query}")).await;
    let mut events: Vec<Value> = Vec::new();
    while events.last().is_none_or(|e| e["object"]["metadata"]["labels"]["end"] != last || e["type"] != "ADDED") {
        events.push(watch.next().await.expect("no end"));
    }
    events
}

fn replay(list: &mut Listed, event: &Value) {
    let (name, revision) = (name(&event["object"]), revision(&event["object"]));
    match event["type"].as_str().unwrap() {
        "ADDED" => assert!(list.insert(name, revision).is_none(), "added twice: {event}"),
        "MODIFIED" => assert!(list.insert(name, revision).is_some_and(|old| old < revision), "{event}"),
        "DELETED" => assert!(list.remove(&name).is_some(), "{event}"),
        other => panic!("{other}: {event}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn a_watch_replayed_on_a_list_is_the_list_at_every_revision(
        steps in prop::collection::vec((0..4u8, 0..6u8, any::<bool>()), 1..24),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = with_namespace().await;
            let queries = ["", "labelSelector=a%3Dx", "fieldSelector=metadata.name%3Dm1"];
            let mut lists: Vec<BTreeMap<u64, Listed>> = vec![BTreeMap::new(); queries.len()];
            for (at, (which, what, marked)) in steps.into_iter().enumerate() {
                let (path, label) = (format!("{MAPS}/m{which}"), if marked { "x" } else { "y" });
                let labels = json!({"name": format!("m{which}"), "labels": {"a": label}});
                let _ = match what {
                    0 | 1 => call(&api, "DELETE", &path, Value::Null).await,
                    2 => call(&api, "PATCH", &path, json!({"metadata": {"labels": {"a": label}}})).await,
                    3 => call(&api, "PUT", &path, json!({"metadata": labels, "data": {"n": at.to_string()}})).await,
                    // Others change alongside it.
                    4 => call(&api, "POST", "/api/v1/namespaces/n/secrets", json!({"metadata": {"generateName": "s-"}})).await,
                    _ => call(&api, "POST", MAPS, json!({"metadata": labels})).await,
                };
                for (query, lists) in queries.iter().zip(&mut lists) {
                    let (revision, list) = listed(&api, query).await;
                    lists.insert(revision, list);
                }
            }
            // What ends each watch: it is in all of them.
            for name in ["m1", "end"] {
                call(&api, "DELETE", &format!("{MAPS}/{name}"), Value::Null).await;
                call(&api, "POST", MAPS, json!({"metadata": {"name": name, "labels": {"a": "x", "end": name}}})).await;
            }
            for (at, (query, lists)) in queries.iter().zip(&lists).enumerate() {
                for (from, list) in lists {
                    let query = format!("{query}&resourceVersion={from}");
                    let events = watch_until(&api, &query, if at == 2 { "m1" } else { "end" }).await;
                    let (mut replayed, mut events) = (list.clone(), events.iter().peekable());
                    for (at, wanted) in lists.range(from + 1..) {
                        while let Some(event) = events.next_if(|e| revision(&e["object"]) <= *at) {
                            replay(&mut replayed, event);
                        }
                        assert_eq!(&replayed, wanted, "{query} at {at}");
                    }
                    events.for_each(|event| replay(&mut replayed, event));
                }
            }
        });
    }
}
