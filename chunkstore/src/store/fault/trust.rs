//! Faults of who asks and who answers: tokens, credentials, certificates.

use super::{Chain, Fault, quote};
use crate::error::ErrorKind;

impl Chain<'_> {
    /// What is wrong with the token that credentials are got for, by those who take it: AWS's STS
    /// and EKS, Microsoft Entra, Google.
    pub(super) fn of_a_token(&self) -> Option<Fault> {
        let has = |word: &str| self.text.contains(word);
        if has("Failed to read token file") || has("Failed to read EKS token file") {
            return Some(Fault::new(ErrorKind::Denied, quote(&self.root)).hint(
                "the token that credentials are got for is not there: look at AWS_WEB_IDENTITY_TOKEN_FILE (or \
                 AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE) and at the volume that projects it",
            ));
        }
        // somebody else writes the next one into the file: worth another try
        if has("ExpiredTokenException") || has("AADSTS700024") {
            return Some(Fault::new(ErrorKind::Unavailable, self.said()).hint(
                "the token file that credentials are got for has run out, and what should renew it (for a pod its node's \
                 kubelet) has not: run it again, a new pod gets a new token",
            ));
        }
        if has("<Code>InvalidIdentityToken<")
            || has("<Code>IDPRejectedClaim<")
            || has("sts:AssumeRole")
        {
            return Some(Fault::new(ErrorKind::Denied, self.said()).hint(
                "the role does not take this token: check AWS_ROLE_ARN, and that the role's trust policy names the token's \
                 issuer, audience and service account",
            ));
        }
        let said = || Fault::new(ErrorKind::Denied, self.said());
        if has("AADSTS7000222") {
            return Some(
                said().hint("the client secret has run out: set a new AZURE_CLIENT_SECRET"),
            );
        }
        has("\"invalid_grant\"").then(|| {
            said().hint("the service account's key was revoked or has run out: make a new one")
        })
    }

    /// No credentials were configured, and the machine's own metadata service gave none.
    pub(super) fn of_credentials(&self) -> Option<Fault> {
        const ASKED: [&str; 5] = [
            "169.254.169.254",
            "169.254.170.2",
            "metadata.google.internal",
            "/latest/api/token",
            "/metadata/identity",
        ];
        if !ASKED.iter().any(|place| self.text.contains(place)) {
            return None;
        }
        let detail = "no credentials are set, and this machine's metadata service gives none";
        Some(Fault::new(ErrorKind::Denied, detail).hint(
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_SERVICE_ACCOUNT, or \
             AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (profile files are not read)",
        ))
    }

    /// What is wrong with the certificate that the server shows.
    pub(super) fn untrusted(&self) -> Option<Fault> {
        let (_, why) = self.root.split_once("invalid peer certificate: ")?;
        // as rustls names it, or says it where it can say more
        let is = |words: [&str; 2]| words.iter().any(|word| why.contains(word));
        let hint = if is(["UnknownIssuer", "SelfSigned"]) {
            "name the certificate of the authority that signed it, as PEM, with SSL_CERT_FILE"
        } else if is(["NotValidForName", "not valid for name"]) {
            "name the server in the endpoint as its certificate does"
        } else if is(["Expired", "certificate expired"]) || is(["NotValidYet", "not valid yet"]) {
            "renew it, or set this machine's clock (a pod has its node's)"
        } else {
            "look at the server's certificate; SSL_CERT_FILE names the authorities that are trusted"
        };
        let detail = format!("the server's certificate is not trusted: {}", quote(why));
        Some(Fault::new(ErrorKind::Denied, detail).hint(hint))
    }
}
