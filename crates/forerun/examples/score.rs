//! How likely the model finds some texts, and the token that it expects least in each.
use forerun::Model;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
    for text in ["The king had three sons.", "The king had three suns.", "Three the had sons king."]
    {
        let scores = model.score(text)?;
        let tokens = scores.token_ids.iter().zip(&scores.logprobs);
        let scored = tokens.filter_map(|(&token, logprob)| Some((token, (*logprob)?)));
        let least = scored.min_by(|(_, a), (_, b)| a.total_cmp(b));
        let (token, logprob) = least.ok_or("a text of one token")?;
        let spelled = model.detokenize(&[token])?;
        let perplexity = scores.perplexity().unwrap_or(f64::NAN);
        println!("{perplexity:9.2}  {text}  least expected: {spelled:?} at {logprob:.2}");
    }
    Ok(())
}
