//! Certificates, made for the run.

use std::net::Ipv4Addr;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The one authority that all parts of a cluster trust.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub(crate) certificate: String,
}

/// A certificate with its key, both PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Authority> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), certificate })
    }

    /// For a server with these names and addresses.
    pub(crate) fn server(&self, name: &str, names: &[&str], addresses: &[Ipv4Addr]) -> Result<Identity> {
        let names =
            names.iter().map(|name| (*name).to_owned()).chain(addresses.iter().map(Ipv4Addr::to_string));
        self.issue(
            CertificateParams::new(names.collect::<Vec<_>>())?,
            name,
            &[],
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    /// For a client, who is a user with groups.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity> {
        self.issue(CertificateParams::default(), user, groups, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        name: &str,
        groups: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity> {
        params.distinguished_name = rcgen::DistinguishedName::new();
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// A kubeconfig (JSON, which is YAML) for this user at the API server with this address.
    pub(crate) fn kubeconfig(&self, server: Ipv4Addr, user: &str, groups: &[&str]) -> Result<String> {
        let identity = self.client(user, groups)?;
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {
                "server": format!("https://{server}:6443"), "certificate-authority-data": base64(&self.certificate),
            }}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "users": [{"name": "lab", "user": {
                "client-certificate-data": base64(&identity.certificate), "client-key-data": base64(&identity.key),
            }}],
        });
        Ok(serde_json::to_string_pretty(&config)?)
    }
}

/// The key pair with which service accounts' tokens are signed: private, public.
pub(crate) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Text in base64, as Kubernetes wants bytes in its objects.
pub(crate) fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for group in text.as_bytes().chunks(3) {
        let byte = |position: usize| usize::from(*group.get(position).unwrap_or(&0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            let letter = LETTERS[bits >> (18 - 6 * position) & 63];
            encoded.push(if position <= group.len() { char::from(letter) } else { '=' });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (text, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text), encoded);
        }
    }
}
