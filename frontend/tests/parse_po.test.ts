import { expect, it } from 'vitest'

import { parsePo } from '../src/messages/parse_po'

it('reads entries on one line and on several, and skips comments, the header and untranslated entries', () => {
  const source = [
    '# a comment', 'msgid ""', 'msgstr ""', '"Language: zh_Hans\\n"', '', '#: somewhere.py:3', 'msgid "head"', 'msgstr "头"', '',
    'msgid ""', '"{n} "', '"heads"', 'msgstr "{n} "', '"个头"', '', 'msgid "missing"', 'msgstr ""', '',
  ].join('\n')
  expect(parsePo(source)).toEqual({ head: '头', '{n} heads': '{n} 个头' })
})

it('reads escapes, and ends without a newline', () => {
  expect(parsePo('msgid "say \\"x\\"\\n\\tC:\\\\n"\r\nmsgstr "说"')).toEqual({ 'say "x"\n\tC:\\n': '说' })
})
