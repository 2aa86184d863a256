import { describe, expect, it } from 'vitest'

import { applyNumberFormat, isMessage, render, renderParts, templateOf } from '../src/messages/message'

const chinese = { '{n} of {total} heads': '{total} 个头中的 {n} 个', 'Tokens of the text': '文本的词元', 'Null: {null}.': '零模型：{null}。', 'random rotation': '随机旋转', 'κ = {kappa:.2f}': 'κ 为 {kappa:.1f}', 'type {{name}}: {name}': '输入 {{name}}：{name}' }

describe('render', () => {
  it('looks a plain string up as a whole', () => {
    expect(render('Tokens of the text', chinese)).toBe('文本的词元')
    expect(render('3 of 24 heads', chinese)).toBe('3 of 24 heads')
    expect(render('Tokens of the text')).toBe('Tokens of the text')
  })
  it('fills in the parameters of a translated template', () => {
    const message = { template: '{n} of {total} heads', parameters: { n: 3, total: 24 } }
    expect(render(message)).toBe('3 of 24 heads')
    expect(render(message, chinese)).toBe('24 个头中的 3 个')
  })
  it('renders parameters that are messages or known strings', () => {
    expect(render({ template: 'Null: {null}.', parameters: { null: { template: '{n} of {total} heads', parameters: { n: 1, total: 2 } } } }, chinese)).toBe('零模型：2 个头中的 1 个。')
    expect(render({ template: 'Null: {null}.', parameters: { null: 'random rotation' } }, chinese)).toBe('零模型：随机旋转。')
  })
  it('finds the name that a title starts with a capital', () => {
    expect(render('Random rotation', chinese)).toBe('随机旋转')
    expect(render('RANDOM ROTATION', chinese)).toBe('RANDOM ROTATION')
  })
  it('stays English without a translation', () => expect(render({ template: '{n} texts', parameters: { n: 2 } }, chinese)).toBe('2 texts'))
  it('uses the format of the translation', () => {
    const message = { template: 'κ = {kappa:.2f}', parameters: { kappa: 0.456 } }
    expect([render(message), render(message, chinese)]).toEqual(['κ = 0.46', 'κ 为 0.5'])
  })
  it('reads {{ and }} as braces if there are parameters, like Python', () => {
    expect(render({ template: 'type {{name}}: {name}', parameters: { name: 'x' } }, chinese)).toBe('输入 {name}：x')
    expect(render({ template: 'type {}', parameters: {} })).toBe('type {}')
  })
  it('does not read parameters as templates', () => {
    expect(render({ template: '{n} of {total} heads', parameters: { n: '{total}', total: '$&' } })).toBe('{total} of $& heads')
  })
  it('shows an unknown placeholder as it is', () => expect(render({ template: '{a} {b}', parameters: { a: 1 } })).toBe('1 {b}'))
  it('keeps commands apart from the text around them, also in a message within a message', () => {
    const inner = { template: 'type {command}', parameters: { command: { command: 'rheoscope card' } } }
    const text = { template: 'Null: {null}.', parameters: { null: inner } }
    expect(renderParts(text, chinese)).toEqual(['零模型：type ', { command: 'rheoscope card' }, '。'])
    expect(render(text)).toBe('Null: type rheoscope card.')
  })
  it('keeps a number and its percent sign on one line', () => expect(render({ template: '{a} % to {b} %', parameters: { a: 17, b: '96' } })).toBe('17\u00a0% to 96\u00a0%'))
  it('does not look up properties of objects', () => expect(render('toString', {})).toBe('toString'))
  it('writes None, True and quoted strings like Python', () => expect(render({ template: '{a} {b} {c!r}', parameters: { a: null, b: true, c: 'x' } })).toBe("None True 'x'"))
})

it.each([
  [1234567, ',', '1,234,567'], [1234.5, ',.1f', '1,234.5'], [0.456, '.2f', '0.46'], [0.456, '+.2f', '+0.46'], [-0.456, '+.2f', '-0.46'],
  [7, 'd', '7'], [7, 's', '7'], [7, '', '7'], [0.5, '', '0.5'], [12345.678, '.3g', '1.23e+04'], [0.5, '.3g', '0.5'], [0.00123, '.1e', '1.2e-03'], [7, '>10', '7'],
])('%d in the format "%s"', (value, format, text) => expect(applyNumberFormat(value, format)).toBe(text))

it('recognises texts by their template', () => {
  expect([templateOf('head'), templateOf({ template: '{n} heads' })]).toEqual(['head', '{n} heads'])
  expect([isMessage({ template: 'a', parameters: {} }), isMessage('a'), isMessage(null)]).toEqual([true, false, false])
})
