//! `proxy`: the node's own API, or another port of its address.

use crate::{
    apiserver::{
        ApiError, ApiRequest, KubeletClient, Target,
        handlers::proxy::{Backend, Locate, SchemeNamePort, is_proxyable, node_address, node_ip},
    },
    kinds::core::pod::proxy::{ADDRESS_NOT_ALLOWED, backend},
};

/// The node.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) kubelet: Option<KubeletClient>,
}

impl Locate for Proxy {
    fn locate(&self, request: &ApiRequest, target: &Target) -> Result<Backend, ApiError> {
        let asked = SchemeNamePort::of(target, "node")?;
        let node = asked.read(request, target)?;
        let own_port = node_address(&node).map(|address| address.port().to_string());
        if asked.port.is_empty() || own_port.is_some_and(|port| port == asked.port) {
            let kubelet = self.kubelet.clone();
            let kubelet = kubelet.ok_or_else(|| ApiError::internal("this server has no credentials for nodes"))?;
            return Ok(Backend::Node(kubelet, Box::new(node)));
        }
        let address = node_ip(&node).filter(|address| is_proxyable(*address));
        let address = address.ok_or_else(|| ApiError::bad_request(ADDRESS_NOT_ALLOWED))?;
        Ok(backend(address, &asked, None))
    }
}
