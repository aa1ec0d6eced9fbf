//! A case with each fault of each of its calls.

use super::{Fault, Faults, RequestFault};

/// Runs `case` without a fault, and then with each way in which each request and each event of that run can fail; returns how many
/// these were, and how many came to pass. What the case has made, it removes, so that all begin alike.
///
/// # Panics
/// When the case asks for nothing.
pub async fn with_each_fault(mut case: impl AsyncFnMut(&Faults)) -> (usize, usize) {
    let faults = Faults::default();
    case(&faults).await;
    let (mut pairs, mut hit) = (faults.calls().pairs(), 0);
    // Cases are not restarted here: faults that end the client are tested elsewhere.
    pairs.retain(|pair| !matches!(pair, Fault::Request(_, RequestFault::EndsBefore | RequestFault::EndsAfter)));
    assert!(!pairs.is_empty(), "nothing was asked for");
    for pair in &pairs {
        println!("{pair:?}");
        let faults = Faults::default();
        faults.arm(Some(*pair));
        case(&faults).await;
        hit += usize::from(faults.calls().hit.is_some());
    }
    println!("{} pairs of a call and a fault; {hit} came to pass", pairs.len());
    (pairs.len(), hit)
}
