// Writes a model of seeded random weights as a GGUF file, for tests against a real llama-server:
// llama, gemma3 (every second layer sees a sliding window only) or lfm2 (every second layer is a
// short convolution, which keeps a state instead of rows).
//
// The same options give the same bytes on every machine and compiler: the weights come from an own
// integer generator (SplitMix64), normals are sums of integers, and the only floating point
// operations are single IEEE multiplications and divisions, so neither libm nor the order of
// evaluation can change a bit.
//
// Embeddings are ~ N(0,1), projections ~ N(0,1)/sqrt(fan-in), and queries three times as long, so
// that every head looks at a few tokens instead of averaging all. Greedy output is then varied and
// depends on the whole context (of 300 words, changing a single one changed the next 32 tokens in
// 56 of 60 tries): a wrong KV cache shows. The prose is nonsense, the behaviour is not.
//
// No dependencies: `c++ -std=c++20 -O2 make_gguf.cpp -o make_gguf` is enough.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

struct Options {
  std::string arch = "llama";
  std::uint64_t seed = 1;
  std::uint32_t layers = 4;
  std::uint32_t embd = 256;
  std::uint32_t heads = 4;
  std::uint32_t ffn = 288;
  std::uint32_t ctx = 16384;
  std::uint32_t vocab = 0;  // at least so many tokens; 0: only those that the tests need
  bool f16 = true;
  std::string out;
};

constexpr const char* kUsage =
    "usage: make_gguf [options] OUT.gguf\n"
    "  --arch A          llama (default), gemma3 (sliding window) or lfm2 (hybrid)\n"
    "  --seed N          weights follow from it (1)\n"
    "  --size S          tiny (4 x 256, 2.7 M parameters) or small (12 x 768, 76 M)\n"
    "  --layers N --embd N --heads N --ffn N --ctx N\n"
    "  --vocab N         fill the vocabulary up to N tokens with made-up words\n"
    "  --type T          f16 (default) or f32\n";

// ---- random numbers
// -------------------------------------------------------------------------------------

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // The sum of eight 16-bit uniforms less its mean: close to a normal of deviation kDeviation, and
  // an integer below 2^24, so that it converts to float without rounding.
  std::int32_t normal() {
    std::int32_t sum = 0;
    for (int draw = 0; draw < 2; ++draw) {
      const std::uint64_t bits = next();
      for (int part = 0; part < 4; ++part) {
        sum += static_cast<std::int32_t>((bits >> (16 * part)) & 0xffffu);
      }
    }
    return sum - 262140;
  }

  static constexpr double kDeviation = 53510.0;  // 65536 * sqrt(8 / 12)

 private:
  std::uint64_t state_;
};

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// floor(sqrt(value)), by integers only.
std::uint64_t integer_sqrt(std::uint64_t value) {
  std::uint64_t root = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 31; bit != 0; bit >>= 1) {
    if ((root + bit) * (root + bit) <= value) {
      root += bit;
    }
  }
  return root;
}

// IEEE half from float, round to nearest even. Values here are far below the largest half.
std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude >= 0x38800000u) {  // normal as a half
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    half = (rounded - 0x38000000u) >> 13;
  } else if (magnitude >= 0x33000000u) {  // subnormal
    const std::uint32_t shift = 126 - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1);
    const std::uint32_t middle = 1u << (shift - 1);
    half = kept + ((rest > middle || (rest == middle && (kept & 1u) != 0)) ? 1 : 0);
  }
  return static_cast<std::uint16_t>(sign | half);
}

// ---- vocabulary
// -----------------------------------------------------------------------------------------

enum class TokenType : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  byte = 6
};

struct Token {
  std::string text;
  float score = 0;
  TokenType type = TokenType::normal;
};

constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's visible space

// clang-format off
constexpr std::string_view kWords =
    "a above across act add again against agent ago air all am an and answer any apple are area "
    "arm art as ask assistant at away back bad ball base be bear because bed been before below "
    "better between big boat bone born box boy build burn but buy by cache came can car carry "
    "cat cause cell child city class close code cold come complete compute control cook copy "
    "correct could country cover crop cry cut data day dead dear deep did different discuss do "
    "does dog done draw drive dry each ear ease eat egg end engine english enough error even "
    "every example explain eye face fair far fast favor feed feet few file fill find fire fish "
    "fit five fly foot for force form free friend front full function game garden gas gave "
    "general get girl glad glass go good got grow guide had hair hand has hat have he head "
    "hello her high him his history hit hold home hot hour house how hunt i ice idea if in inch "
    "index is it job join joy jump keep key king know lake last laugh law lay least leg less "
    "let library lie lift like line list log lone look lot love low man map may me meet memory "
    "men mile mine minute miss mix model more morning most mountain much my name need new night "
    "no noon nor not nothing noun now number object of off oh oil old on once one only or order "
    "our out own page pair paper past pay people perhaps picture plan please point port "
    "possible prefix print problem prompt push put question quiet race rain raise ran read real "
    "reason red remember remote repeat reply report request result return ride ring river rock "
    "room rope rule run safe sail same sat saw say scale school sea second see seem self send "
    "sent sentence server set several she sheet shoe should show simple sit six size skin sky "
    "slot slow smell snow so soft something son soon space spell spot station step stick store "
    "story string student study sugar summer sun sure system table tail talk task teach team "
    "ten test than that the then there thick thing think thought three through tie time tiny to "
    "today together token tone too took tool tools top town travel true try tube two type under "
    "understand unit until up us use user value verb view walk want war warm was wash water way "
    "we wear weather week well were what when which who whole why wide wild win window winter "
    "wire with without wonder word world would write yard yellow yes yet you";
// clang-format on

// Characters that are single tokens. The rest of Unicode falls back to byte tokens, as in real
// models.
constexpr std::array<std::string_view, 12> kLetters = {
    "\xc3\xa4",     "\xc3\xb6",     "\xc3\xbc",
    "\xc3\x9f",     "\xc3\xa9",     "\xc3\xa8",  // Latin
    "\xc3\xb1",     "\xd0\xb6",     "\xce\xbb",
    "\xe4\xbd\xa0", "\xe5\xa5\xbd", "\xf0\x9f\x99\x82"};  // and others

struct Vocabulary {
  std::vector<Token> tokens;
  std::uint32_t bos = 0, eos = 0, unknown = 0, im_end = 0, fim_pre = 0, fim_suf = 0, fim_mid = 0,
                newline = 0;
};

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

Vocabulary make_vocabulary(std::uint32_t at_least) {
  Vocabulary vocabulary;
  auto& tokens = vocabulary.tokens;
  const auto add = [&tokens](std::string text, TokenType type) {
    tokens.push_back({std::move(text), 0, type});
    return static_cast<std::uint32_t>(tokens.size() - 1);
  };
  vocabulary.unknown = add("<unk>", TokenType::unknown);
  vocabulary.bos = add("<s>", TokenType::control);
  vocabulary.eos = add("</s>", TokenType::control);
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kHex = "0123456789ABCDEF";
    const std::uint32_t id =
        add(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", TokenType::byte);
    if (byte == '\n') {
      vocabulary.newline = id;
    }
  }
  add("<|im_start|>", TokenType::control);
  vocabulary.im_end = add("<|im_end|>", TokenType::control);
  vocabulary.fim_pre = add("<|fim_prefix|>", TokenType::control);
  vocabulary.fim_suf = add("<|fim_suffix|>", TokenType::control);
  vocabulary.fim_mid = add("<|fim_middle|>", TokenType::control);
  add("<tool_call>", TokenType::user_defined);
  add("</tool_call>", TokenType::user_defined);

  add(kSpace, TokenType::normal);
  for (char c = '!'; c <= '~'; ++c) {
    add(std::string(1, c), TokenType::normal);
  }
  for (const std::string_view letter : kLetters) {
    add(std::string(letter), TokenType::normal);
  }

  // SentencePiece merges two neighbours at a time and only into known tokens: a word can be reached
  // only when every prefix of it is a token too. Only forms with the space in front exist, so no
  // two merges compete.
  std::vector<std::string> words = split_words(kWords);
  std::set<std::string> known;
  const auto add_with_prefixes = [&](const std::string& word) {
    for (std::size_t length = 1; length <= word.size(); ++length) {
      std::string prefix = word.substr(0, length);
      if (known.insert(prefix).second) {
        const std::uint32_t id = add(kSpace + std::move(prefix), TokenType::normal);
        tokens[id].score = -static_cast<float>(id);
      }
    }
  };
  for (const std::string& word : words) {
    add_with_prefixes(word);
  }
  constexpr std::string_view kConsonants = "bdfgklmnprstvz";
  constexpr std::string_view kVowels = "aeiou";
  for (std::uint32_t n = 0; tokens.size() < at_least; ++n) {
    std::string word;
    for (std::uint32_t rest = n, syllable = 0; syllable < 3; ++syllable) {
      word += kConsonants[rest % kConsonants.size()];
      rest /= static_cast<std::uint32_t>(kConsonants.size());
      word += kVowels[rest % kVowels.size()];
      rest /= static_cast<std::uint32_t>(kVowels.size());
    }
    add_with_prefixes(word);
    if (n > 70u * 70u * 70u) {
      throw std::runtime_error("--vocab: so many tokens cannot be made up");
    }
  }
  return vocabulary;
}

// ChatML with Hermes-style tools, as the widely used instruct models have it.
constexpr const char* kChatTemplate =
    R"({%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if call.function %}{%- set call = call.function %}{%- endif %}
{{- '\n<tool_call>{"name": "' + call.name + '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
)";

// ---- the file
// -------------------------------------------------------------------------------------------

enum class ValueType : std::uint32_t {
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9
};

class Bytes {
 public:
  template <class T>
  void number(T value) {  // little-endian whatever the machine is
    using Bits =
        std::conditional_t<sizeof(T) == 8, std::uint64_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint8_t>>;
    const auto bits = std::bit_cast<Bits>(value);
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
      data_ += static_cast<char>((bits >> (8 * byte)) & 0xffu);
    }
  }
  void string(std::string_view text) {
    number(static_cast<std::uint64_t>(text.size()));
    data_ += text;
  }
  void pad() { data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment, '\0'); }
  const std::string& data() const { return data_; }

  static constexpr std::size_t kAlignment = 32;

 private:
  std::string data_;
};

class Metadata {
 public:
  void u32(std::string_view key, std::uint32_t value) { begin(key, ValueType::u32).number(value); }
  void f32(std::string_view key, float value) { begin(key, ValueType::f32).number(value); }
  void boolean(std::string_view key, bool value) {
    begin(key, ValueType::boolean).number(static_cast<std::uint8_t>(value ? 1 : 0));
  }
  void string(std::string_view key, std::string_view value) {
    begin(key, ValueType::string).string(value);
  }
  Bytes& array(std::string_view key, ValueType type, std::size_t size) {
    Bytes& bytes = begin(key, ValueType::array);
    bytes.number(static_cast<std::uint32_t>(type));
    bytes.number(static_cast<std::uint64_t>(size));
    return bytes;
  }
  std::uint64_t count() const { return count_; }
  const std::string& data() const { return bytes_.data(); }

 private:
  Bytes& begin(std::string_view key, ValueType type) {
    ++count_;
    bytes_.string(key);
    bytes_.number(static_cast<std::uint32_t>(type));
    return bytes_;
  }
  Bytes bytes_;
  std::uint64_t count_ = 0;
};

struct Tensor {
  // sharp: a norm of queries that makes them as long as Fill::query does.
  enum class Fill { ones, sharp, embedding, projection, query, head, convolution };
  std::string name;
  std::vector<std::uint64_t> shape;  // fastest first
  Fill fill;

  bool is_norm() const { return fill == Fill::ones || fill == Fill::sharp; }
  bool is_f16(const Options& options) const {
    return options.f16 && !is_norm() && fill != Fill::convolution;
  }
  std::uint64_t elements() const { return shape[0] * (shape.size() > 1 ? shape[1] : 1); }
  std::uint64_t bytes(const Options& options) const {
    return elements() * (is_f16(options) ? 2 : 4);
  }
};

constexpr std::uint32_t kSlidingWindow = 64;     // gemma3, in tokens
constexpr std::uint32_t kConvolutionLength = 3;  // lfm2, in tokens

// Every second layer of an lfm2; the others attend.
bool is_convolution(const Options& options, std::uint32_t layer) {
  return options.arch == "lfm2" && layer % 2 == 0;
}

void list_convolution(const Options& options, const std::string& block,
                      std::vector<Tensor>& tensors) {
  using Fill = Tensor::Fill;
  const std::uint64_t embd = options.embd;
  tensors.push_back(
      {block + "shortconv.conv.weight", {kConvolutionLength, embd}, Fill::convolution});
  tensors.push_back({block + "shortconv.in_proj.weight", {embd, 3 * embd}, Fill::projection});
  tensors.push_back({block + "shortconv.out_proj.weight", {embd, embd}, Fill::projection});
}

void list_attention(const Options& options, const std::string& block,
                    std::vector<Tensor>& tensors) {
  using Fill = Tensor::Fill;
  const std::uint64_t embd = options.embd;
  const std::uint64_t head = embd / options.heads;
  const bool normed = options.arch != "llama";
  tensors.push_back({block + "attn_q.weight", {embd, embd}, Fill::query});
  tensors.push_back({block + "attn_k.weight", {embd, embd}, Fill::projection});
  tensors.push_back({block + "attn_v.weight", {embd, embd}, Fill::projection});
  tensors.push_back({block + "attn_output.weight", {embd, embd}, Fill::projection});
  if (normed) {
    tensors.push_back({block + "attn_q_norm.weight", {head}, Fill::sharp});
    tensors.push_back({block + "attn_k_norm.weight", {head}, Fill::ones});
  }
}

std::vector<Tensor> list_tensors(const Options& options, std::uint64_t vocab) {
  using Fill = Tensor::Fill;
  const std::uint64_t embd = options.embd;
  const std::uint64_t ffn = options.ffn;
  const bool gemma = options.arch == "gemma3";
  std::vector<Tensor> tensors;
  // gemma3 multiplies embeddings by the root of their size.
  tensors.push_back(
      {"token_embd.weight", {embd, vocab}, gemma ? Fill::projection : Fill::embedding});
  for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    tensors.push_back({block + "attn_norm.weight", {embd}, Fill::ones});
    if (is_convolution(options, layer)) {
      list_convolution(options, block, tensors);
    } else {
      list_attention(options, block, tensors);
    }
    if (gemma) {
      tensors.push_back({block + "post_attention_norm.weight", {embd}, Fill::ones});
    }
    tensors.push_back({block + "ffn_norm.weight", {embd}, Fill::ones});
    tensors.push_back({block + "ffn_gate.weight", {embd, ffn}, Fill::projection});
    tensors.push_back({block + "ffn_up.weight", {embd, ffn}, Fill::projection});
    tensors.push_back({block + "ffn_down.weight", {ffn, embd}, Fill::projection});
    if (gemma) {
      tensors.push_back({block + "post_ffw_norm.weight", {embd}, Fill::ones});
    }
  }
  tensors.push_back({options.arch == "lfm2" ? "token_embd_norm.weight" : "output_norm.weight",
                     {embd},
                     Fill::ones});
  // Not tied to the embeddings: the last token would always predict itself.
  tensors.push_back({"output.weight", {embd, vocab}, Fill::head});
  return tensors;
}

// How strongly each token's logit varies, in 1/16. Control and byte tokens never win a greedy
// choice, so that every answer is text; the end of a turn wins about every fortieth time, so that
// answers end by themselves.
std::vector<std::uint8_t> head_gains(const Vocabulary& vocabulary) {
  std::vector<std::uint8_t> gains;
  for (const Token& token : vocabulary.tokens) {
    gains.push_back(token.type == TokenType::normal ? 16 : 0);
  }
  gains[vocabulary.newline] = 16;
  gains[vocabulary.im_end] = 27;
  return gains;
}

std::string tensor_data(const Tensor& tensor, const Options& options,
                        const std::vector<std::uint8_t>& gains) {
  Bytes bytes;
  if (tensor.is_norm()) {
    for (std::uint64_t n = 0; n < tensor.elements(); ++n) {
      bytes.number(tensor.fill == Tensor::Fill::sharp ? 3.0f : 1.0f);
    }
    bytes.pad();
    return bytes.data();
  }
  const std::uint64_t row = tensor.shape[0];
  // 1/sqrt(row) by integers: sqrt(row) in units of 2^-20.
  const auto root = static_cast<double>(integer_sqrt(row << 40)) / 1048576.0;
  const double gain = tensor.fill == Tensor::Fill::query ? 3.0 : 1.0;
  const bool scaled = tensor.fill != Tensor::Fill::embedding;
  const auto scale = static_cast<float>(gain / (SplitMix64::kDeviation * (scaled ? root : 1.0)));
  SplitMix64 random(options.seed ^ fnv1a(tensor.name));
  std::string data;
  data.reserve(tensor.bytes(options) + Bytes::kAlignment);
  for (std::uint64_t n = 0; n < tensor.elements(); ++n) {
    float value = static_cast<float>(random.normal()) * scale;
    if (tensor.fill == Tensor::Fill::head) {
      value *= static_cast<float>(gains[n / row]) * 0.0625f;
    }
    const std::uint32_t bits =
        tensor.is_f16(options) ? to_half(value) : std::bit_cast<std::uint32_t>(value);
    for (int byte = 0; byte < (tensor.is_f16(options) ? 2 : 4); ++byte) {
      data += static_cast<char>((bits >> (8 * byte)) & 0xffu);
    }
  }
  data.resize((data.size() + Bytes::kAlignment - 1) / Bytes::kAlignment * Bytes::kAlignment, '\0');
  return data;
}

// Keys of the architecture's own.
void add_shape(const Options& options, std::uint32_t vocab, Metadata& metadata) {
  const std::string arch = options.arch + ".";
  metadata.u32(arch + "vocab_size", vocab);
  metadata.u32(arch + "context_length", options.ctx);
  metadata.u32(arch + "embedding_length", options.embd);
  metadata.u32(arch + "block_count", options.layers);
  metadata.u32(arch + "feed_forward_length", options.ffn);
  metadata.u32(arch + "attention.head_count", options.heads);
  if (options.arch == "lfm2") {
    Bytes& heads = metadata.array(arch + "attention.head_count_kv", ValueType::i32, options.layers);
    for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
      heads.number(is_convolution(options, layer) ? 0U : options.heads);
    }
    metadata.u32(arch + "shortconv.l_cache", kConvolutionLength);
  } else {
    metadata.u32(arch + "attention.head_count_kv", options.heads);
  }
  if (options.arch == "gemma3") {
    metadata.u32(arch + "attention.key_length", options.embd / options.heads);
    metadata.u32(arch + "attention.value_length", options.embd / options.heads);
    metadata.u32(arch + "attention.sliding_window", kSlidingWindow);
    metadata.u32(arch + "attention.sliding_window_pattern", 2);
  }
  metadata.u32(arch + "rope.dimension_count", options.embd / options.heads);
  metadata.f32(arch + "rope.freq_base", 10000.0f);
  metadata.f32(arch + "attention.layer_norm_rms_epsilon", 1e-5f);
}

void write_model(const Options& options) {
  const Vocabulary vocabulary = make_vocabulary(options.vocab);
  const auto& tokens = vocabulary.tokens;
  const std::vector<Tensor> tensors = list_tensors(options, tokens.size());

  Metadata metadata;
  metadata.string("general.architecture", options.arch);
  metadata.string("general.name", "toki random " + std::to_string(options.layers) + "x" +
                                      std::to_string(options.embd) + " seed " +
                                      std::to_string(options.seed));
  metadata.u32("general.file_type", options.f16 ? 1 : 0);
  add_shape(options, static_cast<std::uint32_t>(tokens.size()), metadata);
  metadata.string("tokenizer.ggml.model", "llama");
  metadata.string("tokenizer.ggml.pre", "default");
  Bytes& texts = metadata.array("tokenizer.ggml.tokens", ValueType::string, tokens.size());
  for (const Token& token : tokens) {
    texts.string(token.text);
  }
  Bytes& scores = metadata.array("tokenizer.ggml.scores", ValueType::f32, tokens.size());
  for (const Token& token : tokens) {
    scores.number(token.score);
  }
  Bytes& types = metadata.array("tokenizer.ggml.token_type", ValueType::i32, tokens.size());
  for (const Token& token : tokens) {
    types.number(static_cast<std::int32_t>(token.type));
  }
  metadata.u32("tokenizer.ggml.bos_token_id", vocabulary.bos);
  metadata.u32("tokenizer.ggml.eos_token_id", vocabulary.im_end);
  metadata.u32("tokenizer.ggml.unknown_token_id", vocabulary.unknown);
  metadata.u32("tokenizer.ggml.eot_token_id", vocabulary.im_end);
  metadata.u32("tokenizer.ggml.fim_pre_token_id", vocabulary.fim_pre);
  metadata.u32("tokenizer.ggml.fim_suf_token_id", vocabulary.fim_suf);
  metadata.u32("tokenizer.ggml.fim_mid_token_id", vocabulary.fim_mid);
  metadata.boolean("tokenizer.ggml.add_bos_token", true);
  metadata.boolean("tokenizer.ggml.add_eos_token", false);
  metadata.boolean("tokenizer.ggml.add_space_prefix", false);
  metadata.string("tokenizer.chat_template", kChatTemplate);

  Bytes infos;
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    infos.string(tensor.name);
    infos.number(static_cast<std::uint32_t>(tensor.shape.size()));
    for (const std::uint64_t size : tensor.shape) {
      infos.number(size);
    }
    infos.number(static_cast<std::uint32_t>(tensor.is_f16(options) ? 1 : 0));
    infos.number(offset);
    offset +=
        (tensor.bytes(options) + Bytes::kAlignment - 1) / Bytes::kAlignment * Bytes::kAlignment;
  }
  Bytes head;
  head.number(std::uint32_t{0x46554747});  // "GGUF"
  head.number(std::uint32_t{3});
  head.number(static_cast<std::uint64_t>(tensors.size()));
  head.number(metadata.count());
  std::string start = head.data() + metadata.data() + infos.data();
  start.resize((start.size() + Bytes::kAlignment - 1) / Bytes::kAlignment * Bytes::kAlignment,
               '\0');

  // Written beside its place and renamed, so that a reader never meets half a model.
  const std::string part = options.out + ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  const std::vector<std::uint8_t> gains = head_gains(vocabulary);
  file.write(start.data(), static_cast<std::streamsize>(start.size()));
  std::uint64_t parameters = 0;
  for (const Tensor& tensor : tensors) {
    const std::string data = tensor_data(tensor, options, gains);
    file.write(data.data(), static_cast<std::streamsize>(data.size()));
    parameters += tensor.elements();
  }
  file.close();
  if (!file || std::rename(part.c_str(), options.out.c_str()) != 0) {
    std::remove(part.c_str());
    throw std::runtime_error("cannot write " + options.out);
  }
  std::printf("%s: %u x %u, %zu tokens, %.1f M parameters\n", options.out.c_str(), options.layers,
              options.embd, tokens.size(), static_cast<double>(parameters) / 1e6);
}

// ---- command line
// ---------------------------------------------------------------------------------------

template <class T>
T number(std::string_view option, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument(std::string(option) + " wants a number, not '" + std::string(text) +
                                "'");
  }
  return value;
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    const std::string& name = arguments[at];
    if (!name.starts_with("--")) {
      options.out = name;
      continue;
    }
    if (at + 1 == arguments.size()) {
      throw std::invalid_argument(name + " wants a value");
    }
    const std::string& value = arguments[++at];
    if (name == "--arch") {
      options.arch = value;
    } else if (name == "--seed") {
      options.seed = number<std::uint64_t>(name, value);
    } else if (name == "--size" && value == "tiny") {
      options.layers = 4, options.embd = 256, options.heads = 4, options.ffn = 288;
    } else if (name == "--size" && value == "small") {
      options.layers = 12, options.embd = 768, options.heads = 12, options.ffn = 1664;
    } else if (name == "--layers") {
      options.layers = number<std::uint32_t>(name, value);
    } else if (name == "--embd") {
      options.embd = number<std::uint32_t>(name, value);
    } else if (name == "--heads") {
      options.heads = number<std::uint32_t>(name, value);
    } else if (name == "--ffn") {
      options.ffn = number<std::uint32_t>(name, value);
    } else if (name == "--ctx") {
      options.ctx = number<std::uint32_t>(name, value);
    } else if (name == "--vocab") {
      options.vocab = number<std::uint32_t>(name, value);
    } else if (name == "--type" && (value == "f16" || value == "f32")) {
      options.f16 = value == "f16";
    } else {
      throw std::invalid_argument("unknown option: " + name + " " + value);
    }
  }
  if (options.arch != "llama" && options.arch != "gemma3" && options.arch != "lfm2") {
    throw std::invalid_argument("--arch " + options.arch + ": llama, gemma3 or lfm2");
  }
  if (options.out.empty()) {
    throw std::invalid_argument("no output file named");
  }
  if (options.layers == 0 || options.heads == 0 || options.embd % (2 * options.heads) != 0 ||
      options.embd % 32 != 0 || options.ffn % 32 != 0 || options.ffn == 0 || options.ctx == 0) {
    throw std::invalid_argument(
        "embd and ffn must be multiples of 32, and embd of twice the heads");
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty() || arguments[0] == "--help") {
    std::fputs(kUsage, arguments.empty() ? stderr : stdout);
    return arguments.empty() ? 2 : 0;
  }
  try {
    write_model(parse(arguments));
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "make_gguf: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_gguf: %s\n", error.what());
    return 1;
  }
}
