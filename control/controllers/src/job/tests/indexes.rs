use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::job::indexes::Indexes;

#[test]
fn texts_are_read_and_written() {
    for (text, completions, written, total) in [
        ("", 10, "", 0),
        ("0", 10, "0", 1),
        ("0-3,5", 10, "0-3,5", 5),
        ("0,1", 10, "0,1", 2),
        ("0,1,2", 10, "0-2", 3),
        ("1-2", 10, "1,2", 2),
        ("0-3,5", 3, "0-2", 3),
        ("7", 7, "", 0),
        ("x,3,-1,5-4,1-y", 10, "3", 1),
        ("0-2147483647", 2_147_483_647, "0-2147483646", 2_147_483_647),
    ] {
        let indexes = Indexes::parse(text, completions);
        assert_eq!((indexes.to_string().as_str(), indexes.total()), (written, total), "{text}");
    }
}

proptest! {
    /// They are sets of numbers.
    #[test]
    fn they_are_sets(one in prop::collection::btree_set(0i32..60, 0..40), other in prop::collection::btree_set(0i32..60, 0..40)) {
        let (a, b): (Indexes, Indexes) = (one.iter().copied().collect(), other.iter().copied().collect());
        prop_assert_eq!(&Indexes::parse(&a.to_string(), 60), &a);
        prop_assert_eq!(usize::try_from(a.total()).unwrap(), one.len());
        prop_assert_eq!(usize::try_from(a.common(&b)).unwrap(), one.intersection(&other).count());
        prop_assert_eq!(a.and(&b), one.union(&other).copied().collect::<Indexes>());
        let missing: BTreeSet<i32> = (0..50).filter(|index| !one.contains(index)).collect();
        prop_assert_eq!(a.missing(50, 100).into_iter().collect::<BTreeSet<_>>(), missing.clone());
        prop_assert_eq!(a.missing(50, 3), missing.into_iter().take(3).collect::<Vec<_>>());
        for index in 0..60 {
            prop_assert_eq!(a.has(index), one.contains(&index));
        }
    }
}
