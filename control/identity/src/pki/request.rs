//! A request for a certificate: what it asks for. Pure.

use windlass_kit::subject::Subject;
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME,
    pem::Pem,
    prelude::FromDer as _,
};

/// What a request says. It is read once: who decides on it and who signs it see the same, and the certificate is made of
/// that, not of the bytes that it was read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateRequest {
    /// Whom the certificate is to be for.
    pub subject: Subject,
    /// How many alternative names there are of each kind.
    pub dns_names: usize,
    pub ip_addresses: usize,
    pub email_addresses: usize,
    pub uris: usize,
    /// The key, in DER.
    pub public_key: Vec<u8>,
    /// The alternative names, by their tags in DER.
    pub alternative_names: Vec<(u8, Vec<u8>)>,
}

impl CertificateRequest {
    /// Reads a request as objects of the API have it: PEM in base64.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn from_base64(text: &str) -> Result<Self, String> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        Self::from_pem(&STANDARD.decode(text).map_err(|e| e.to_string())?)
    }

    /// Reads a request in PEM, and checks that its sender has the key.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let block = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
        let block = block.filter(|block| block.label == "CERTIFICATE REQUEST");
        let block = block.ok_or("PEM block type must be CERTIFICATE REQUEST")?;
        let (_, request) = X509CertificationRequest::from_der(&block.contents).map_err(|e| e.to_string())?;
        request.verify_signature().map_err(|e| format!("unable to verify certificate request signature: {e}"))?;
        let info = &request.certification_request_info;
        let mut read = Self {
            subject: Subject::read(&info.subject).map_err(|e| e.to_string())?,
            public_key: info.subject_pki.raw.to_vec(),
            ..Self::default()
        };
        let extensions = info.iter_attributes().filter_map(|attribute| match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(asked) => Some(&asked.extensions),
            _ => None,
        });
        for extension in extensions.flatten().filter(|e| e.oid == OID_X509_EXT_SUBJECT_ALT_NAME) {
            let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
                return Err("the alternative names cannot be read".to_owned());
            };
            for name in &names.general_names {
                let (tag, bytes, number) = match name {
                    GeneralName::RFC822Name(name) => (0x81, name.as_bytes(), &mut read.email_addresses),
                    GeneralName::DNSName(name) => (0x82, name.as_bytes(), &mut read.dns_names),
                    GeneralName::URI(name) => (0x86, name.as_bytes(), &mut read.uris),
                    GeneralName::IPAddress(
                        bytes @ ([_, _, _, _] | [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _]),
                    ) => (0x87, *bytes, &mut read.ip_addresses),
                    _ => {
                        return Err(
                            "alternative names may be DNS names, IP addresses, email addresses and URIs".to_owned()
                        );
                    }
                };
                *number += 1;
                read.alternative_names.push((tag, bytes.to_vec()));
            }
        }
        Ok(read)
    }
}
