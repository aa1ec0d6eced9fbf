//! Properties of what reads requests, for fuzzers.

use bytes::Bytes;

use super::{grpc, messages::*};

/// A request's body is one message or refused, and a message that was read is the same after it was written.
///
/// # Panics
/// When that does not hold.
pub fn request(body: &[u8]) {
    let Ok(message) = grpc::unframed(&Bytes::copy_from_slice(body)) else { return };
    assert_eq!(grpc::framed(&message), body);
    let checks: [fn(&[u8]); 8] = [
        check::<ListContainersRequest>,
        check::<ListContainerStatsRequest>,
        check::<ListPodSandboxRequest>,
        check::<ContainerStatusRequest>,
        check::<StopContainerRequest>,
        check::<ExecSyncRequest>,
        check::<ImageStatusRequest>,
        check::<PullImageRequest>,
    ];
    checks.iter().for_each(|check| check(&message));
}

fn check<M: Message + PartialEq + std::fmt::Debug>(message: &[u8]) {
    let Ok(read) = M::decoded(message) else { return };
    assert_eq!(M::decoded(&read.encoded()).as_ref(), Ok(&read));
}
