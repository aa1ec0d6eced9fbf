//! What the API server and the node must read alike in objects of the API: which nodes a selector means, which claims
//! a pod uses, what containers ask for. Pure; imports no client.

pub mod claims;
pub mod node_selector;
pub mod resources;
