import { expect, it } from 'vitest'

import { LANGUAGES } from '../src/messages'
import { Tongue } from '../src/messages/tongue'

const tongue = new Tongue({
  'Tokens gather': '词元聚集', 'share of tokens': '词元占比', 'token {0} {1}': '词元 {0} {1!}', '{n} heads': '{n} 个头', '{0}. Null: {1}.': '{0}。零模型：{1}。',
  'at random; twice': '随机两次', key: '键', '{0} of {1}': '{1}中的 {0}', 'A cloud.': '一团点云。', embed: '嵌入', 'after {0}': '{0} 之后',
})

it.each([
  ['Tokens gather', '词元聚集'],
  ['3 heads', '3 个头'],
  ['the same heads', 'the same heads'],
  ['3 of 24 heads', '24 个头中的 3'],
  ['share of tokens. Null: at random; twice.', '词元占比。零模型：随机两次。'],
  ['A cloud. Tokens gather: 0.5.', '一团点云。词元聚集：0.5。'],
  ['share of tokens; nobody knows; key', '词元占比；nobody knows；键'],
  ['token 3 key', '词元 3 key'],
  ['after embed', '嵌入之后'],
  ['L3.mlp: 0.5', 'L3.mlp: 0.5'],
  ['embed → L0.mlp', '嵌入 → L0.mlp'],
  ['', ''],
])('%s', (text, other) => expect(tongue.tell(text)).toBe(other))

it('English stays as it came', () => expect(LANGUAGES.en!.said.tell('share of tokens. Null: x.')).toBe('share of tokens. Null: x.'))

it('what a person wrote into a gap is text, never a pattern', () => {
  expect(tongue.tell('token 3 $&{0}$1')).toBe('词元 3 $&{0}$1')
})
