//! The commands of `docs/migrate-from-topolvm.md`: what people read is what is tested.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// What the page says is to be run, block by block.
pub(super) struct Page {
    /// The variables; the four steps up to the end of TopoLVM; the rest.
    pub(super) take_over: Vec<String>,
    /// What stands in the way; the rest.
    pub(super) roll_back: Vec<String>,
}

impl Page {
    pub(super) fn read() -> Result<Page> {
        let path = workspace::directory().join("docs/migrate-from-topolvm.md");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let page = Page { take_over: blocks(&text, "Take over"), roll_back: blocks(&text, "Roll back") };
        let counts = (page.take_over.len(), page.roll_back.len());
        ensure!(counts == (6, 3), "the page has {counts:?} blocks: the test has to follow it");
        Ok(page)
    }
}

/// The blocks of shell commands of a section.
fn blocks(page: &str, section: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    let heading = format!("## {section}");
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    for line in lines.take_while(|line| !line.starts_with("## ")).map(str::trim_start) {
        match (&mut block, line) {
            (None, "```sh") => block = Some(String::new()),
            (Some(_), "```") => blocks.extend(block.take()),
            (Some(block), line) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_section_are_read_in_their_order_and_no_others() {
        let page = "## One\n```sh\na\n```\n1. text\n\n   ```sh\n   b\n   c\n   ```\n```console\nd\n```\n## Two\n```sh\ne\n```\n";
        assert_eq!(blocks(page, "One"), ["a\n", "b\nc\n"]);
        assert_eq!(blocks(page, "Two"), ["e\n"]);
    }

    #[test]
    fn the_page_is_as_the_test_expects_it() {
        Page::read().unwrap();
    }
}
