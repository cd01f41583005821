//! An admission webhook: it rejects every object that is labelled `lab/reject`.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::Result;

/// Serves for ever, with the certificate `tls.crt` and the key `tls.key` (PEM) in this directory.
pub(crate) fn serve_for_ever(directory: &Path) -> Result<()> {
    let certificate = CertificateDer::from_pem_file(directory.join("tls.crt"))?;
    let key = PrivateKeyDer::from_pem_file(directory.join("tls.key"))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key)?;
    let config = Arc::new(config);
    let listener = TcpListener::bind("0.0.0.0:8443")?;
    println!("listening");
    for connection in listener.incoming() {
        let (connection, config) = (connection?, Arc::clone(&config));
        std::thread::spawn(move || {
            if let Err(error) = serve(connection, config) {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}

fn serve(connection: TcpStream, config: Arc<ServerConfig>) -> Result<()> {
    connection.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(config)?, connection));
    while let Some(body) = request(&mut stream)? {
        let review: Value = serde_json::from_slice(&body)?;
        let answer = serde_json::to_vec(&judge(&review))?;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        let stream = stream.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(&answer)?;
        stream.flush()?;
    }
    Ok(())
}

/// The body of the next request; `None` at the end of the connection.
fn request(stream: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut length = 0;
    for number in 0.. {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return if number == 0 { Ok(None) } else { Err("the request was cut off".into()) };
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some(body))
}

fn judge(review: &Value) -> Value {
    let request = &review["request"];
    let mut response = match request["object"]["metadata"]["labels"]["lab/reject"].as_str() {
        Some(reason) => {
            json!({"allowed": false, "status": {"message": format!("rejected by the lab: {reason}")}})
        }
        None => json!({"allowed": true}),
    };
    response["uid"] = request["uid"].clone();
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_with_the_label_is_rejected() {
        let review =
            |labels: Value| json!({"request": {"uid": "u", "object": {"metadata": {"labels": labels}}}});
        let rejected = judge(&review(json!({"lab/reject": "because"})));
        assert_eq!(rejected["response"]["allowed"], false);
        assert_eq!(rejected["response"]["status"]["message"], "rejected by the lab: because");
        assert_eq!(judge(&review(json!({"a": "b"})))["response"], json!({"uid": "u", "allowed": true}));
    }

    #[test]
    fn a_request_is_read_by_its_length_and_the_end_is_no_error() {
        let mut wire = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}".as_slice();
        assert_eq!(request(&mut wire).unwrap().unwrap(), b"{}");
        assert!(request(&mut wire).unwrap().is_none());
        assert!(request(&mut b"POST / HTTP/1.1\r\n".as_slice()).is_err());
    }
}
