//! Endpoints of upstream's own tests.

use std::{collections::BTreeSet, net::SocketAddr};

use serde_json::Value;
use windlass_fixtures::facts::{json_of, rows, text_of};

use super::{TrafficPolicy, categorize_endpoints};
use crate::model::{Endpoint, Hints};

static TABLE: &str = include_str!("../../../facts/proxy_topology.tsv");

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn endpoint(row: &Value, node: &str) -> Endpoint {
    let at: SocketAddr = row[0].as_str().unwrap().parse().unwrap();
    let is = |at: usize| row[at].as_bool().unwrap();
    let hints = Hints {
        zones: texts(&row[5]).map(Into::into).collect(),
        has_nodes: texts(&row[6]).next().is_some(),
        our_node: texts(&row[6]).any(|named| named == node),
    };
    let hints = (hints.has_nodes || !hints.zones.is_empty()).then(|| Box::new(hints));
    let (ready, serving, terminating, local) = (is(1), is(2), is(3), is(4));
    Endpoint { ip: at.ip(), port: at.port(), ready, serving, terminating, local, hints }
}

#[test]
fn as_upstreams_tests_say() {
    let mut seen = 0;
    for cells in rows(TABLE) {
        let json = |at: usize| json_of(cells[at]);
        let (name, node, zone, letters) = (cells[1], text_of(cells[2]), text_of(cells[3]), text_of(cells[4]));
        let endpoints: Vec<Endpoint> = json(5).as_array().unwrap().iter().map(|row| endpoint(row, &node)).collect();
        let policy = TrafficPolicy {
            internal_local: letters.contains('i'),
            external_local: letters.contains('e'),
            externally_accessible: letters.contains('x'),
            zone: &zone,
        };
        let found = categorize_endpoints(&endpoints, &policy);
        let addresses = |picked: &[usize]| picked.iter().map(|at| endpoints[*at].address()).collect::<BTreeSet<_>>();
        let expected = |at: usize| texts(&json(at)).map(str::to_owned).collect::<BTreeSet<_>>();
        assert_eq!(addresses(&found.cluster), expected(6), "{name}");
        assert_eq!(addresses(&found.local), expected(7), "{name}");
        assert_eq!(addresses(&found.all_reachable), expected(8), "{name}");
        assert_eq!(found.has_any, cells[9] == "true", "{name}");
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}
