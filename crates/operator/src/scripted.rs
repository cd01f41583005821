//! An API server for tests that answers what it is told to.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::{Client, Config};
use lvms_api::Personality;
use lvms_cluster::Events;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Context;
use crate::question::Question;
use crate::stores::Stores;

/// What was asked: verb and path.
pub(crate) type Asked = Arc<Mutex<Vec<String>>>;

/// What was asked but for events, which are told whenever there is time.
pub(crate) fn but_events(asked: &Asked) -> Vec<String> {
    asked.lock().unwrap().iter().filter(|request| !request.starts_with("EVENT")).cloned().collect()
}

/// Waits until an event with this reason was told, and returns it.
pub(crate) async fn told(asked: &Asked, reason: &str) -> String {
    let said = format!("\"reason\":\"{reason}\"");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let event = asked.lock().unwrap().iter().find(|event| event.contains(&said)).cloned();
        match event {
            Some(event) => return event,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
        assert!(Instant::now() < deadline, "waited in vain for the event {reason}");
    }
}

/// A context whose API is asked with a verb and a path, and answers with a code and an object. What was asked of it is
/// returned, too, and of events all that they say.
pub(crate) async fn context(
    answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
) -> (Arc<Context>, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Asked::default();
    let (answer, noted) = (Arc::new(answer), Arc::clone(&asked));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&answer), Arc::clone(&noted)));
        }
    });
    let mut config = Config::new(format!("http://{address}").parse().unwrap());
    // As in a connection of ours.
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let context = Context {
        personality: Personality::Topolvm,
        client: client.clone(),
        namespace: "lvms".to_owned(),
        stores: Arc::new(Stores::default()),
        events: Events::new(client, "test", ""),
        identity: String::new(),
        names: Question::default(),
    };
    (Arc::new(context), asked)
}

/// One request per connection.
async fn serve(mut stream: TcpStream, answer: Arc<impl Fn(&str) -> (u16, Value)>, asked: Asked) {
    let mut request = Vec::new();
    let head = loop {
        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut request).await.unwrap() == 0 {
            return;
        }
    };
    let text = String::from_utf8(request[..head].to_vec()).unwrap();
    let length =
        text.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    while request.len() < head + length.unwrap_or(0) {
        stream.read_buf(&mut request).await.unwrap();
    }
    let line = text.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
    let (code, object) = if line.contains("/events") {
        let event = String::from_utf8_lossy(&request[head..]).into_owned();
        asked.lock().unwrap().push(format!("EVENT {event}"));
        (201, json!({}))
    } else {
        asked.lock().unwrap().push(line.to_owned());
        answer(line)
    };
    let body = object.to_string();
    let head = "content-type: application/json\r\nconnection: close";
    let response = format!("HTTP/1.1 {code} x\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(response.as_bytes()).await.unwrap();
}
