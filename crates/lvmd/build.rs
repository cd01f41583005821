//! Makes Rust of the interface definitions, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["lvmd.proto", "health.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_client(std::env::var_os("CARGO_FEATURE_CLIENT").is_some())
        .compile_fds(files)?;
    Ok(())
}
