/** Gettext catalogues as the project writes them: msgid and msgstr, on one line or on several. */

const ESCAPES: Record<string, string> = { n: '\n', t: '\t', r: '\r', '"': '"', '\\': '\\' }

const unquote = (quoted: string): string => quoted.trim().slice(1, -1).replace(/\\(.)/g, (_, letter: string) => ESCAPES[letter] ?? letter)

/** The translated entries of a .po file: msgid → msgstr. Comments, the header and untranslated entries are left out. */
export function parsePo(source: string): Record<string, string> {
  const entries: Record<string, string> = {}
  let [msgid, msgstr] = ['', '']
  let current: 'msgid' | 'msgstr' | '' = ''
  const finishEntry = () => {
    if (msgid && msgstr) entries[msgid] = msgstr
    ;[msgid, msgstr] = ['', '']
  }
  for (const line of source.split(/\r?\n/)) {
    if (line.startsWith('msgid ')) {
      finishEntry()
      current = 'msgid'
      msgid = unquote(line.slice(6))
    } else if (line.startsWith('msgstr ')) {
      current = 'msgstr'
      msgstr = unquote(line.slice(7))
    } else if (line.startsWith('"') && current === 'msgid') msgid += unquote(line)
    else if (line.startsWith('"') && current === 'msgstr') msgstr += unquote(line)
    else current = ''
  }
  finishEntry()
  return entries
}
