//! The items of an answer as they fill, and the events that tell of it.

use super::tools::{CalledTool, ToolNames, input_of};
use crate::answer::AnswerEvent;
use crate::ids;
use crate::wire::responses::{ContentPart, OutputItem, ResponseEvent, Status};

/// Items so far; the last may be open.
#[derive(Default)]
pub(super) struct Items {
    pub(super) done: Vec<OutputItem>,
    open: Option<Open>,
    /// How the client calls its tools.
    names: ToolNames,
}

/// The item that is being filled.
struct Open {
    id: String,
    kind: ItemKind,
    text: String,
}

enum ItemKind {
    Reasoning,
    Message,
    Call { call_id: String, tool: CalledTool, whole: bool },
}

type Tell<'a> = dyn FnMut(ResponseEvent<'static>) + 'a;

impl Open {
    /// The item with what it has; one that is only announced has nothing.
    fn item(&self, status: Status) -> OutputItem {
        let id = self.id.clone();
        let begun = !(self.text.is_empty() && status == Status::InProgress);
        let content = if begun { vec![self.part()] } else { Vec::new() };
        match &self.kind {
            ItemKind::Reasoning => {
                OutputItem::Reasoning { id, summary: [], content, encrypted_content: None, status }
            }
            ItemKind::Message => OutputItem::Message { id, status, role: "assistant", content },
            ItemKind::Call { call_id, tool, .. } => {
                let (call_id, CalledTool { namespace, name, custom }) =
                    (call_id.clone(), tool.clone());
                if custom {
                    let input = input_of(&self.text);
                    OutputItem::CustomToolCall { id, call_id, namespace, name, input, status }
                } else {
                    let arguments = self.text.clone();
                    OutputItem::FunctionCall { id, call_id, namespace, name, arguments, status }
                }
            }
        }
    }

    fn part(&self) -> ContentPart {
        let text = self.text.clone();
        match self.kind {
            ItemKind::Reasoning => ContentPart::ReasoningText { text },
            _ => ContentPart::OutputText { text, annotations: [], logprobs: [] },
        }
    }

    /// What tells of more text. The input of a custom tool is told when it is whole.
    fn delta(&self, output_index: usize, delta: String) -> Option<ResponseEvent<'static>> {
        let (item_id, content_index) = (self.id.clone(), 0);
        Some(match &self.kind {
            ItemKind::Reasoning => {
                ResponseEvent::ReasoningDelta { item_id, output_index, content_index, delta }
            }
            ItemKind::Message => ResponseEvent::TextDelta {
                item_id,
                output_index,
                content_index,
                delta,
                logprobs: [],
            },
            ItemKind::Call { tool: CalledTool { custom: true, .. }, .. } => return None,
            ItemKind::Call { .. } => ResponseEvent::ArgumentsDelta { item_id, output_index, delta },
        })
    }

    /// What tells that there is no more text.
    fn text_done(&self, output_index: usize) -> ResponseEvent<'static> {
        let (item_id, content_index, text) = (self.id.clone(), 0, self.text.clone());
        match &self.kind {
            ItemKind::Reasoning => {
                ResponseEvent::ReasoningDone { item_id, output_index, content_index, text }
            }
            ItemKind::Message => {
                ResponseEvent::TextDone { item_id, output_index, content_index, text, logprobs: [] }
            }
            ItemKind::Call { tool: CalledTool { custom: true, .. }, .. } => {
                ResponseEvent::InputDone { item_id, output_index, input: input_of(&text) }
            }
            ItemKind::Call { tool: CalledTool { name, .. }, .. } => ResponseEvent::ArgumentsDone {
                item_id,
                output_index,
                name: name.clone(),
                arguments: text,
            },
        }
    }
}

impl Items {
    pub(super) fn new(names: ToolNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Takes a part of the answer.
    pub(super) fn take(&mut self, part: AnswerEvent, tell: &mut Tell<'_>) {
        match part {
            AnswerEvent::Reasoning(text) => {
                if !matches!(self.open, Some(Open { kind: ItemKind::Reasoning, .. })) {
                    self.begin("rs_", ItemKind::Reasoning, tell);
                }
                self.grow(text, tell);
            }
            AnswerEvent::Content { text, .. } => {
                if !matches!(self.open, Some(Open { kind: ItemKind::Message, .. })) {
                    self.begin("msg_", ItemKind::Message, tell);
                }
                self.grow(text, tell);
            }
            AnswerEvent::ToolCall { id: call_id, name, .. } => {
                let tool = self.names.called(&name);
                let prefix = if tool.custom { "ctc_" } else { "fc_" };
                self.begin(prefix, ItemKind::Call { call_id, tool, whole: false }, tell);
            }
            AnswerEvent::ToolArguments { delta, .. } => self.grow(delta, tell),
            AnswerEvent::ToolEnd => {
                if let Some(Open { kind: ItemKind::Call { whole, .. }, .. }) = &mut self.open {
                    *whole = true;
                }
            }
            AnswerEvent::Started(_) | AnswerEvent::Tokens { .. } | AnswerEvent::Finished(_) => {}
        }
    }

    fn begin(&mut self, prefix: &str, kind: ItemKind, tell: &mut Tell<'_>) {
        self.close(Status::Completed, tell);
        let open = Open { id: ids::fresh(prefix), kind, text: String::new() };
        let output_index = self.done.len();
        tell(ResponseEvent::ItemAdded { output_index, item: open.item(Status::InProgress) });
        if !matches!(open.kind, ItemKind::Call { .. }) {
            let (item_id, part) = (open.id.clone(), open.part());
            tell(ResponseEvent::PartAdded { item_id, output_index, content_index: 0, part });
        }
        self.open = Some(open);
    }

    fn grow(&mut self, text: String, tell: &mut Tell<'_>) {
        if let Some(open) = &mut self.open {
            open.text.push_str(&text);
            open.delta(self.done.len(), text).into_iter().for_each(tell);
        }
    }

    /// Ends the open item, with this status where it does not have one of its own: a call is complete when it is whole,
    /// however the answer went on.
    pub(super) fn close(&mut self, status: Status, tell: &mut Tell<'_>) {
        let Some(open) = self.open.take() else { return };
        let output_index = self.done.len();
        let status = match open.kind {
            ItemKind::Call { whole: true, .. } => Status::Completed,
            ItemKind::Call { whole: false, .. } => Status::Incomplete,
            _ => status,
        };
        // Nobody should act on arguments that are not whole.
        if !matches!(open.kind, ItemKind::Call { whole: false, .. }) {
            let done = open.text_done(output_index);
            if let ResponseEvent::InputDone { item_id, input, .. } = &done {
                let (item_id, delta) = (item_id.clone(), input.clone());
                tell(ResponseEvent::InputDelta { item_id, output_index, delta });
            }
            tell(done);
        }
        if !matches!(open.kind, ItemKind::Call { .. }) {
            let (item_id, part) = (open.id.clone(), open.part());
            tell(ResponseEvent::PartDone { item_id, output_index, content_index: 0, part });
        }
        let item = open.item(status);
        tell(ResponseEvent::ItemDone { output_index, item: item.clone() });
        self.done.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tools::ResponsesTools;
    use super::*;
    use crate::api::Ignored;
    use serde_json::{Value, json};

    /// Items and the types of the events that told of them.
    fn told(parts: Vec<AnswerEvent>) -> (Value, Vec<String>) {
        let (mut items, mut kinds) = (Items::default(), Vec::new());
        let mut tell = |event: ResponseEvent<'static>| {
            kinds.push(json!(event)["type"].as_str().expect("a type").to_owned());
        };
        parts.into_iter().for_each(|part| items.take(part, &mut tell));
        items.close(Status::Completed, &mut tell);
        (json!(items.done), kinds)
    }

    fn call(arguments: &str) -> [AnswerEvent; 2] {
        let (id, name) = ("call_1".to_owned(), "f".to_owned());
        let delta = arguments.to_owned();
        [
            AnswerEvent::ToolCall { index: 0, id, name },
            AnswerEvent::ToolArguments { index: 0, delta },
        ]
    }

    #[test]
    fn a_call_that_goes_wrong_is_incomplete_and_what_follows_is_not() {
        const DONE: &str = "response.function_call_arguments.done";
        let said = || AnswerEvent::Content { text: "oh".to_owned(), logprobs: Vec::new() };
        let parts = call("{\"a\": [").into_iter().chain([said()]).collect();
        let (items, kinds) = told(parts);
        assert_eq!(
            (&items[0]["status"], &items[1]["status"]),
            (&json!("incomplete"), &json!("completed"))
        );
        assert!(!kinds.iter().any(|kind| kind == DONE), "{kinds:?}");
        let parts = call("{}").into_iter().chain([AnswerEvent::ToolEnd, said()]).collect();
        let (items, kinds) = told(parts);
        assert_eq!(items[0]["status"], "completed");
        assert!(kinds.iter().any(|kind| kind == DONE), "{kinds:?}");
    }

    #[test]
    fn a_custom_tool_is_called_with_text_and_one_in_a_namespace_by_its_own_name() {
        let tools = json!([
            {"type": "custom", "name": "f"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
        ]);
        let tools = ResponsesTools::read(tools.as_array().expect("a list"), &Ignored::default());
        let (mut items, mut events) = (Items::new(tools.expect("tools").names), Vec::new());
        let mut tell = |event: ResponseEvent<'static>| events.push(json!(event));
        let named = |name: &str, arguments: &str| {
            let [_, delta] = call(arguments);
            let (id, name) = ("call_1".to_owned(), name.to_owned());
            [AnswerEvent::ToolCall { index: 0, id, name }, delta, AnswerEvent::ToolEnd]
        };
        let parts = named("f", r#"{"input":"a\n\"b\""}"#).into_iter().chain(named("n.g", "{}"));
        parts.for_each(|part| items.take(part, &mut tell));
        items.close(Status::Completed, &mut tell);
        let (custom, inner) = (json!(items.done[0]), json!(items.done[1]));
        assert_eq!(
            (&custom["type"], &custom["input"]),
            (&json!("custom_tool_call"), &json!("a\n\"b\""))
        );
        assert_eq!((&inner["namespace"], &inner["name"]), (&json!("n"), &json!("g")));
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        let expected = [
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
        ];
        assert_eq!(kinds[..4], expected);
        assert_eq!(events[1]["delta"], custom["input"]);
    }
}
