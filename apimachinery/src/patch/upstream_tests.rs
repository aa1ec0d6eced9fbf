//! Strategic merge patches of upstream's own tests.

use windlass_fixtures::facts::{json_of, rows};

use super::strategic;
use crate::schema::TypeIndex;

static TABLE: &str = include_str!("../../../facts/strategic_patch.tsv");
/// The types of upstream's test.
static TYPES: &str = "\
MergeItem
\tname\tstring\t1
\tvalue\tstring\t2
\tother\tstring\t3
\tmergingList\tlist<MergeItem>\t4\tpatch=merge:name
\tnonMergingList\tlist<MergeItem>\t5
\tmergingIntList\tlist<int64>\t6\tpatch=merge
\tnonMergingIntList\tlist<int64>\t7
\tmergeItemPtr\tlist<MergeItem>\t8\tpatch=merge:name
\tsimpleMap\tmap<string>\t9
\treplacingItem\trawExtension\t10\tpatch=replace
\tjsonItem\tjson\t11
\tretainKeysMap\tRetainKeysMergeItem\t12\tpatch=retainKeys
\tretainKeysMergingList\tlist<MergeItem>\t13\tpatch=merge,retainKeys:name
RetainKeysMergeItem
\tname\tstring\t1
\tvalue\tstring\t2
\tother\tstring\t3
\tsimpleMap\tmap<string>\t4
\tmergingIntList\tlist<int64>\t5\tpatch=merge
\tmergingList\tlist<MergeItem>\t6\tpatch=merge:name
\tnonMergingList\tlist<MergeItem>\t7
";

#[test]
fn as_upstreams_tests_say() {
    let types = TypeIndex::new(&[("test/v1", TYPES)]);
    let schema = types.get("test/v1.MergeItem").unwrap();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for cells in rows(TABLE) {
        let json = |at: usize| json_of(cells[at]);
        let found = strategic(&schema, &json(2), &json(3));
        let as_expected = match (cells.get(5), &found) {
            (Some(error), Err(why)) => why.to_string().contains(error),
            (None, Ok(result)) => *result == json(4),
            _ => false,
        };
        if !as_expected {
            wrong.push(format!("{cells:?}\n{found:?}"));
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 250, "{seen}");
}
