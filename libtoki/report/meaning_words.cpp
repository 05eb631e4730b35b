#include "report/meaning_words.hpp"

namespace toki::report {
namespace {

constexpr std::string_view kNumbers[] = {
    "0 zero null zéro cero ноль 零 〇",
    "1 one ein eine einen einem einer eines un une uno una один одна одно одну um uma 一",
    "2 two zwei deux dos два две due dois duas twee två 二 两 兩",
    "3 three drei trois tres три tre três drie 三",
    "4 four vier quatre cuatro четыре quattro quatro 四",
    "5 five fünf cinq cinco пять cinque vijf 五",
    "6 six sechs seis шесть sei zes 六",
    "7 seven sieben sept siete семь sette sete zeven 七",
    "8 eight acht huit ocho восемь otto oito 八",
    "9 nine neun neuf nueve девять nove negen 九",
    "10 ten zehn dix diez десять dieci dez tien 十",
    "11 eleven elf onze once одиннадцать undici",
    "12 twelve zwölf douze doce двенадцать dodici twaalf dozen dutzend",
    "13 thirteen treize trece тринадцать",
    "14 fourteen quatorze catorce четырнадцать",
    "15 fifteen quinze quince пятнадцать",
    "16 sixteen seize шестнадцать",
    "17 seventeen семнадцать",
    "18 eighteen восемнадцать",
    "19 nineteen девятнадцать",
    "20 twenty vingt veinte двадцать venti",
    "30 thirty trente treinta тридцать",
    "40 forty quarante cuarenta сорок",
    "50 fifty cinquante cincuenta пятьдесят",
    "60 sixty soixante sesenta шестьдесят",
    "70 seventy setenta семьдесят",
    "80 eighty ochenta восемьдесят",
    "90 ninety noventa девяносто",
    "100 hundred cent cien ciento сто cento 百",
    "1000 thousand mille mil тысяча тысячи тысяч 千",
    "10000 万 萬",
    "1000000 million millions millionen millón millones миллион миллиона миллионов",
    "1000000000 billion billions milliarde milliarden milliard milliards миллиард миллиарда "
    "миллиардов",
    "100000000 亿 億",
    "1000000000000 trillion trillions billionen billones",
    "half half hälfte halb moitié mitad половина 半",
    "x2 twice double doppelt doppelte zweimal doble двойной",
    "x3 triple thrice dreifach dreimal",
    "quarter quarter viertel quart cuarto",
    "#2 second zweite zweiten zweiter zweites deuxième segundo segunda второй вторая",
    "#3 third dritte dritten dritter drittes troisième tercero tercera третий третья",
    "#4 fourth vierte vierten quatrième четвёртый",
    "#5 fifth fünfte fünften cinquième quinto пятый",
    "#6 sixth",
    "#7 seventh",
    "#8 eighth",
    "#9 ninth",
    "#10 tenth",
};

constexpr std::string_view kEndings[] = {"zehn",    "zwanzig", "dreißig", "vierzig",
                                         "fünfzig", "sechzig", "siebzig", "achtzig",
                                         "neunzig", "hundert", "tausend"};

constexpr std::string_view kNots[] = {
    // English; what ends in n't counts as well
    "not", "no", "never", "none", "nobody", "nothing", "neither", "nor", "nowhere", "without",
    "cannot", "hardly", "barely", "scarcely", "rarely", "seldom", "unless", "except", "fail",
    "fails", "failed", "lack", "lacks", "cant", "dont", "doesnt", "isnt", "wont",
    // German
    "nicht", "kein", "keine", "keinen", "keinem", "keiner", "keines", "nie", "niemals", "niemand",
    "nichts", "ohne", "weder", "nirgends", "kaum", "nein",
    // French (ne and n' are counted apart, because they mostly come with another)
    "pas", "jamais", "rien", "aucun", "aucune", "sans", "guère", "non",
    // Spanish, Italian, Portuguese
    "nunca", "jamás", "nada", "nadie", "ningún", "ninguno", "ninguna", "sin", "tampoco", "mai",
    "niente", "nessuno", "senza", "não", "ninguém", "nenhum", "nenhuma", "sem",
    // Dutch, Swedish, Polish, Turkish
    "niet", "geen", "nooit", "zonder", "inte", "aldrig", "utan", "nigdy", "nikt", "bez", "değil",
    // Russian
    "не", "нет", "ни", "никогда", "никто", "ничего", "нельзя", "без", "ничто", "нигде",
    // Arabic, Hindi
    "لا", "ليس", "لم", "لن", "नहीं", "मत",
    // Chinese
    "不", "没", "沒", "無", "无", "勿", "莫", "未", "别", "非"};

constexpr std::string_view kPairs[] = {
    "true|false",
    "yes|no",
    "on|off",
    "in|out",
    "up|down",
    "above|below",
    "over|under",
    "inside|outside",
    "before|after",
    "earlier|later",
    "early|late",
    "first|last",
    "first erste ersten erster première premier primero primera первый первая 1st|"
    "second|third|last",
    "left|right",
    "right|wrong",
    "correct|incorrect wrong",
    "more|less fewer",
    "most|least|few",
    "many|few",
    "all every each everybody everyone|some|none|most|few|many|several",
    "always|sometimes|never|often|rarely",
    "everything|nothing|something",
    "can could|must|should",
    "may might|must|should|will|cannot",
    "must|should",
    "before|after|during",
    "above|below|beside",
    "increas* ris* rise rose grew grow grows grown climb* gain*|"
    "decreas* fall falls fell fallen drop* declin* shrink* shrank reduc* lost",
    "greater larger bigger|smaller",
    "higher|lower",
    "high|low",
    "long longer|short shorter",
    "big large huge|small tiny little",
    "old older|new newer|young younger",
    "fast faster quick quicker quickly|slow slower slowly",
    "hot warm|cold cool",
    "heavy heavier|light lighter",
    "strong stronger|weak weaker",
    "cheap cheaper|expensive",
    "easy easier simple|hard harder difficult",
    "good better best|bad worse worst",
    "safe|dangerous unsafe",
    "open opens opened|close closes closed shut",
    "start starts started begin begins began|stop stops stopped end ends ended finish*",
    "enable* enabling|disable* disabling",
    "allow* permit*|forbid* deny denies denied prohibit* block*",
    "accept*|reject* refus* declin*",
    "success succeed* successful*|failure fail fails failed",
    "win wins won|lose loses lost",
    "buy buys bought|sell sells sold",
    "add adds added|remove removes removed delete deletes deleted subtract*",
    "push|pull",
    "read reads|write writes",
    "send sends sent|receive receives received",
    "lock locks locked|unlock unlocks unlocked",
    "empty|full",
    "alive|dead",
    "love loves|hate hates",
    "include* including|exclude* excluding",
    "maximum max|minimum min",
    "positive|negative",
    "odd|even",
    "public|private",
    "local|remote",
    "input|output",
    "male|female",
    "he him his|she her hers",
    "man men|woman women",
    "boy boys|girl girls",
    "mother|father|son|daughter|brother|sister|uncle|aunt",
    "morning|noon|afternoon|evening|midnight|night",
    "today|tomorrow|yesterday",
    "am|pm",
    "winter|summer|spring|autumn",
    "red|green|blue|yellow|black|white|orange|purple|brown|grey gray|pink",
    "north* |south*|east eastern|west western",
    "monday|tuesday|wednesday|thursday|friday|saturday|sunday",
    "january|february|april|june|july|august|september|october|november|december",
    // units
    "nanoseconds ns|microseconds us|milliseconds ms|seconds|minute minutes|hour hours|day days|"
    "week weeks|month months|year years|decade decades|century centuries",
    "mm millimeters millimetres|cm centimeters centimetres|meter meters metre metres|"
    "km kilometer kilometers kilometre kilometres|inch inches|foot feet|yard yards|mile miles",
    "mg milligrams|gram grams|kg kilogram kilograms|ton tons tonnes|ounce ounces oz|"
    "pound pounds lb lbs",
    "bit bits|byte bytes|kb kilobytes|mb megabytes|gb gigabytes|tb terabytes|kib|mib|gib",
    "ml milliliters|liter liters litre litres|gallon gallons|cup cups|tablespoon tablespoons|"
    "teaspoon teaspoons",
    "celsius|fahrenheit|kelvin",
    "dollar dollars|euro euros|pound pounds|yen|rubles|cent cents",
    "watt watts|kilowatt kilowatts|volt volts|ampere amperes",
    // German
    "wahr|falsch",
    "richtig|falsch",
    "ja|nein",
    "mit|ohne",
    "vor|nach",
    "links|rechts",
    "oben|unten",
    "immer|nie|manchmal|oft",
    "alle|einige|keine|viele|wenige",
    "mehr|weniger",
    "größer*|kleiner*",
    "hoch höher|niedrig niedriger tief tiefer",
    "groß große großen großes großer|klein kleine kleinen kleines kleiner",
    "alt alte alten|neu neue neuen|jung junge jungen",
    "schnell|langsam",
    "heiß warm|kalt",
    "gut besser|schlecht schlechter",
    "offen geöffnet|geschlossen zu",
    "steigt stieg gestiegen erhöh*|sinkt sank gesunken gefallen fällt fiel verringer*",
    "kann|muss|darf|soll|sollte",
    "montag|dienstag|mittwoch|donnerstag|freitag|samstag sonnabend|sonntag",
    "januar|februar|märz|april|mai|juni|juli|august|september|oktober|november|dezember",
    "heute|morgen|gestern",
    "rot* |grün* |blau* |gelb* |schwarz* |weiß*",
    // French
    "vrai|faux",
    "oui|non",
    "avec|sans",
    "avant|après",
    "gauche|droite",
    "plus|moins",
    "toujours|jamais|parfois",
    "tous toutes|certains certaines|aucun aucune",
    "grand grande grands grandes|petit petite petits petites",
    "chaud chaude|froid froide",
    "ouvert ouverte|fermé fermée",
    "augment*|diminu* baiss*",
    "lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche",
    "janvier|février|mars|avril|mai|juin|juillet|août|septembre|octobre|novembre|décembre",
    "rouge|vert verte|bleu bleue|jaune|noir noire|blanc blanche",
    // Spanish
    "verdadero verdadera|falso falsa",
    "sí|no",
    "con|sin",
    "antes|después",
    "izquierda|derecha",
    "más|menos",
    "siempre|nunca",
    "todos todas|algunos algunas|ningún ninguno",
    "grande grandes|pequeño pequeña",
    "caliente|frío fría",
    "abierto abierta|cerrado cerrada",
    "aument* subió sube|disminuy* bajó baja",
    "lunes|martes|miércoles|jueves|viernes|sábado|domingo",
    "enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre",
    "rojo roja|verde|azul|amarillo amarilla|negro negra|blanco blanca",
    // Russian
    "да|нет",
    "правда верно|ложь неверно",
    "до|после",
    "лев* слева налево|прав* справа направо",
    "больше более|меньше менее",
    "всегда|никогда|иногда",
    "все|некоторые|никто",
    "больш*|маленьк* мал*",
    "горяч* тёпл*|холодн*",
    "открыт* открой*|закрыт* закрой*",
    "повыси* вырос* увелич* растёт|понизи* упал* уменьш* снизи* падает",
    "понедельник|вторник|среда среду|четверг|пятница пятницу|суббота субботу|воскресенье",
    // Chinese, one character each
    "开 開|关 關|闭 閉",
    "大|小",
    "多|少",
    "高|低",
    "上|下",
    "左|右",
    "前|后 後",
    "男|女",
    "冷|热 熱",
    "对 對|错 錯",
    "真|假",
    "增 升|减 減|降",
    "买 買|卖 賣",
    "东 東|西|南|北",
    "红 紅|绿 綠|蓝 藍|黑|白|黄 黃",
};

constexpr std::string_view kAround[] = {
    "before", "after", "than",  "then",    "until",   "because", "from",   "to",    "into",
    "vor",    "nach",  "bevor", "nachdem", "als",     "dann",    "weil",   "avant", "après",
    "puis",   "parce", "que",   "antes",   "después", "luego",   "porque", "до",    "после",
    "чем",    "потом", "затем", "если",    "比",      "先",      "再",     "因"};

constexpr std::string_view kAnd[] = {"and", "or", "und", "oder", "et", "ou", "y", "o",
                                     "e",   "и",  "или", "和",   "与", "或", "及"};

constexpr std::string_view kOnly[] = {"only",    "just",      "even", "also",  "nur",  "sogar",
                                      "auch",    "seulement", "même", "aussi", "solo", "sólo",
                                      "incluso", "только",    "даже", "只",    "仅",   "也"};

constexpr std::string_view kGermanWords[] = {
    "der",  "das", "und", "ist", "nicht", "ein",  "eine", "einen", "mit", "von", "auf", "im",
    "nach", "wir", "ich", "sie", "für",   "wird", "sind", "zu",    "den", "dem", "des", "wurde"};

}  // namespace

const std::span<const std::string_view> kNumberWords(kNumbers);
const std::span<const std::string_view> kNumberEndings(kEndings);
const std::span<const std::string_view> kNegations(kNots);
const std::span<const std::string_view> kOpposites(kPairs);
const std::span<const std::string_view> kRelations(kAround);
const std::span<const std::string_view> kJoins(kAnd);
const std::span<const std::string_view> kScopes(kOnly);
const std::span<const std::string_view> kGerman(kGermanWords);

}  // namespace toki::report
